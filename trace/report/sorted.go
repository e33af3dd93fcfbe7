package report

import "slices"

// sorted is a map in the order of its keys. Addresses come in any order, so an insertion into a
// single sorted list would move half of it. The keys are therefore in consecutive parts of bounded
// length.
type sorted[V any] struct{ parts [][]keyed[V] }

type keyed[V any] struct {
	key   uint64
	value V
}

// partLength is the most keys of a part.
const partLength = 256

// find returns where the first key from key on is, or would be, and whether it is the key.
func (s *sorted[V]) find(key uint64) (part, at int, found bool) {
	part, _ = slices.BinarySearchFunc(s.parts, key, func(p []keyed[V], key uint64) int {
		if p[len(p)-1].key < key {
			return -1
		}
		return 1
	})
	if part == len(s.parts) {
		return part, 0, false
	}
	list := s.parts[part]
	at, _ = slices.BinarySearchFunc(list, key, func(e keyed[V], key uint64) int {
		if e.key < key {
			return -1
		}
		return 1
	})
	return part, at, list[at].key == key
}

// set sets the value of a key.
func (s *sorted[V]) set(key uint64, v V) {
	part, at, found := s.find(key)
	if found {
		s.parts[part][at].value = v
		return
	}
	switch {
	case len(s.parts) == 0:
		s.parts = append(s.parts, nil)
	case part == len(s.parts):
		part--
		at = len(s.parts[part])
	}
	list := slices.Insert(s.parts[part], at, keyed[V]{key, v})
	s.parts[part] = list
	if len(list) > partLength {
		half := len(list) / 2
		s.parts[part] = list[:half:half]
		s.parts = slices.Insert(s.parts, part+1, slices.Clone(list[half:]))
	}
}

// remove removes a key.
func (s *sorted[V]) remove(key uint64) {
	part, at, found := s.find(key)
	if !found {
		return
	}
	if list := slices.Delete(s.parts[part], at, at+1); len(list) > 0 {
		s.parts[part] = list
	} else {
		s.parts = slices.Delete(s.parts, part, part+1)
	}
}

// from returns the value of the first key from key on.
func (s *sorted[V]) from(key uint64) (v V, ok bool) {
	part, at, _ := s.find(key)
	if part == len(s.parts) {
		return v, false
	}
	return s.parts[part][at].value, true
}

// before returns the value of the last key below key.
func (s *sorted[V]) before(key uint64) (v V, ok bool) {
	part, at, _ := s.find(key)
	if at == 0 {
		if part == 0 {
			return v, false
		}
		part--
		at = len(s.parts[part])
	}
	return s.parts[part][at-1].value, true
}

// all yields the values in the order of their keys.
func (s *sorted[V]) all(yield func(V) bool) {
	for _, p := range s.parts {
		for i := range p {
			if !yield(p[i].value) {
				return
			}
		}
	}
}
