package audit

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
)

// keeping is the memory that an owner's blocks keep, alone or with others.
type keeping struct {
	segments, free, blocks, bytes int64
	category                      int // of the owner
}

// keptAt visits each segment at a moment, with the owners of its blocks and its free bytes.
func keptAt(blocks, segments []*life, m int, visit func(owners map[string]keeping, free int64), nameOf func(*life) string) {
	for _, s := range segments {
		if m < s.alloc || s.free <= m {
			continue
		}
		owners, free := map[string]keeping{}, s.entry.Size
		for _, b := range blocks {
			if at := b.entry.Address; b.alloc <= m && m < b.done && s.entry.Address <= at && uint64(at) < uint64(s.entry.Address)+uint64(s.entry.Size) {
				k := owners[nameOf(b)]
				owners[nameOf(b)] = keeping{1, 0, k.blocks + 1, k.bytes + b.entry.Block, category(b)}
				free -= b.entry.Block
			}
		}
		if len(owners) > 0 && free > 0 {
			visit(owners, free)
		}
	}
}

// reportedFragmentation adds the memory that could not be released at each moment and, at the peak
// of reserved memory, the owners of the blocks that kept it.
func (w *world) reportedFragmentation(f figures, blocks, segments []*life, n int, recorded bool) {
	nameless := !slices.ContainsFunc(w.books.events, func(e memcache.HistoryEntry) bool { return e.Label.Category != 0 || e.Label.Module != "" })
	nameOf := func(b *life) string {
		if nameless { // then an owner is the blocks of one size
			return fmt.Sprint(owner(b.label), " ", b.entry.Block)
		}
		return fmt.Sprint(owner(b.label), " ", 0)
	}
	peak, reserved, most := -1, int64(0), int64(0)
	for m := range n {
		now := int64(0)
		keptAt(blocks, segments, m, func(_ map[string]keeping, free int64) { now += free }, nameOf)
		most = max(most, now)
		if !recorded {
			f[fmt.Sprintf("not releasable[%d]", m)] = now
		}
		if v := sumAt(segments, m, segmentBytes); v > reserved {
			peak, reserved = m, v
		}
	}
	f["not releasable at most"] = most
	all, shared := keeping{}, map[int]keeping{}
	keepers := map[string]*[2]keeping{}
	keptAt(blocks, segments, peak, func(owners map[string]keeping, free int64) {
		all.segments++
		all.free += free
		together, of, kept := min(len(owners)-1, 1), map[int]bool{}, keeping{}
		for name, k := range owners {
			if keepers[name] == nil {
				keepers[name] = &[2]keeping{}
			}
			to := &keepers[name][together]
			*to = keeping{to.segments + 1, to.free + free, to.blocks + k.blocks, to.bytes + k.bytes, 0}
			of[k.category] = true
			kept.blocks += k.blocks
			kept.bytes += k.bytes
		}
		if together > 0 {
			category := -3 // several
			for c := range of {
				if len(of) == 1 {
					category = c
				}
			}
			s := shared[category]
			shared[category] = keeping{s.segments + 1, s.free + free, s.blocks + kept.blocks, s.bytes + kept.bytes, 0}
		}
	}, nameOf)
	releasable := reserved - all.free
	for _, s := range segments {
		if s.alloc == peak {
			releasable -= s.entry.Size
		}
	}
	for _, b := range blocks {
		if b.alloc <= peak && peak < b.done {
			releasable -= b.entry.Block
		}
	}
	if peak < 0 || 20*(all.free+releasable) < reserved || all.free+releasable == 0 {
		return
	}
	at := "fragmentation."
	if !recorded {
		f[at+"moment"] = peak
	}
	f[at+"reserved"], f[at+"free"], f[at+"releasable"], f[at+"segments"], f[at+"others"] = reserved, all.free, releasable, all.segments, max(0, len(keepers)-5)
	for category, k := range shared {
		f.addKeeping(fmt.Sprint(at, "shared ", category), k)
	}
	var order [][2]int64
	for name, k := range keepers {
		f.addKeeping(at+"keeper "+name+".alone", k[0])
		f.addKeeping(at+"keeper "+name+".shared", k[1])
		order = append(order, [2]int64{k[0].free, k[1].free})
	}
	slices.SortFunc(order, func(x, y [2]int64) int { return cmp.Or(cmp.Compare(y[0], x[0]), cmp.Compare(y[1], x[1])) })
	f[at+"order"] = fmt.Sprint(order[:min(5, len(order))])
}

func category(b *life) int { return int(b.label.Category) }

func (f figures) addKeeping(at string, k keeping) {
	f[at+".segments"], f[at+".free"], f[at+".blocks"], f[at+".bytes"] = k.segments, k.free, k.blocks, k.bytes
}

// addFragmentation adds the same of the page.
func (p page) addFragmentation(f figures, recorded bool, ownerOf func(any) string) {
	changes := map[int]int64{}
	for i, at := range p.columns["keptAt"] {
		changes[int(at)] += int64(p.columns["keptBy"][i])
	}
	for i, alloc := range p.columns["alloc"] {
		if apart := p.columns["apart"]; apart != nil && apart[i] != 0 {
			continue
		}
		changes[int(alloc)] -= int64(p.columns["size"][i])
		changes[int(alloc+p.columns["life"][i]+p.columns["wait"][i])] += int64(p.columns["size"][i])
	}
	now, most := changes[-1], int64(0)
	for m := range int(number(p.doc["moments"])) {
		now += changes[m]
		most = max(most, now)
		if !recorded {
			f[fmt.Sprintf("not releasable[%d]", m)] = now
		}
	}
	f["not releasable at most"] = most
	doc, ok := p.doc["fragmentation"].(map[string]any)
	if !ok {
		return
	}
	at := "fragmentation."
	add := func(at string, v any) {
		for name, v := range v.(map[string]any) {
			f[at+"."+name] = v
		}
	}
	for name, v := range doc {
		switch name {
		case "shared":
			list, _ := v.([]any)
			for _, s := range list {
				s := s.(map[string]any)
				name := fmt.Sprint(at, "shared ", s["category"])
				delete(s, "category")
				add(name, s)
			}
		case "keepers":
			var order [][2]int64
			for _, k := range v.([]any) {
				k := k.(map[string]any)
				name := fmt.Sprint(at, "keeper ", ownerOf(k["owner"]), " ", k["size"])
				add(name+".alone", k["alone"])
				add(name+".shared", k["shared"])
				order = append(order, [2]int64{number(k["alone"].(map[string]any)["free"]), number(k["shared"].(map[string]any)["free"])})
			}
			f[at+"order"] = fmt.Sprint(order)
		default:
			if !recorded || name != "moment" {
				f[at+name] = v
			}
		}
	}
}
