package model

import "slices"

// TrimTo returns free memory until at most bytes bytes are reserved, and waits for pending frees if
// that is not enough.
func (m *Model) TrimTo(bytes int64) {
	if m.trim(bytes) > 0 {
		m.awaitFrees(nil)
		m.trim(bytes)
	}
}

// trim returns free memory to the driver, and returns how many more than bytes bytes are then
// reserved.
func (m *Model) trim(bytes int64) (over int64) {
	reserved := func() int64 { return m.Stats.Arrays[ReservedBytes][0].Current }
	missing := reserved() - bytes
	var chosen []*Block
	choose := func(p *Pool, k Kind) {
		var list []*Block
		for _, id := range m.order {
			for _, b := range m.free(id, p, k, 0) {
				if m.returns(b) > 0 {
					list = append(list, b)
				}
			}
		}
		for missing > 0 && len(list) > 0 {
			b := slices.MinFunc(list, func(a, b *Block) int { return m.sooner(a, b, missing) })
			list = slices.DeleteFunc(list, func(o *Block) bool { return o == b })
			chosen = append(chosen, b)
			missing -= m.returns(b)
		}
	}
	for _, p := range m.releasedPools() {
		choose(p, Large)
		choose(p, Small)
	}
	if !m.aloof() {
		choose(m.Default(), Large)
		choose(m.Default(), Small)
	}
	for _, b := range chosen {
		if b.Segment.Expandable {
			m.unmap(b, reserved()-bytes)
		} else {
			m.returnSegment(b.Segment)
		}
	}
	if len(chosen) > 0 {
		m.forget(nil)
	}
	return reserved() - bytes
}

// returns returns how many bytes of a free block can be returned to the driver.
func (m *Model) returns(b *Block) int64 {
	if !b.Segment.Expandable {
		if !b.alone() {
			return 0
		}
		return b.Size
	}
	from, to := m.granules(b)
	return max(to-from, 0)
}

// sooner is negative if a is returned before b while missing bytes are to be returned: a is older;
// or of the same age, and the smaller one that is enough; or neither is enough, and a is the larger
// one.
func (m *Model) sooner(a, b *Block, missing int64) int {
	sign := func(less bool) int {
		if less {
			return -1
		}
		return 1
	}
	x, y := m.returns(a), m.returns(b)
	switch {
	case a.born != b.born:
		return sign(a.born < b.born)
	case (x >= missing) != (y >= missing):
		return sign(x >= missing)
	case x != y:
		return sign((x < y) == (x >= missing))
	}
	return sign((a.At < b.At) == (x >= missing))
}
