package tensor

import "context"

// A lifetime whose tensors are made in groups has slots, of a tensor and its handle each. One that is Reset makes tensors in the slots of those
// that were released: a training's step makes the same tensors as the one before, which are then no garbage. A slot is used again when nobody
// can be at it any more: its tensor was released, by a call that has returned, and so was every one that shared its memory, and no graph has
// that. Who releases says so last of all (handle.left, freedAgain), as it may be another goroutine than the lifetime's. What lives stays, and is
// looked at again by the next Reset.

// slots are a lifetime's.
type slots struct {
	made   int         // tensors, of those that are made in groups
	group  int         // of the next group; 0: there are none
	fresh  slotGroup   // for tensors to come
	again  bool        // the lifetime was reset: slots are used again
	groups []slotGroup // of those
	free   []*Tensor   // in slots that can be used again, the next one last; their handles are the slots'
}

type slotGroup struct {
	tensors []Tensor
	handles []handle
}

// The least and the most tensors that are made at a time.
const (
	leastTensors = 16
	mostTensors  = 512
)

// freedAgain is in place of the references of a storage that is freed, in a slot that is used again.
const freedAgain = -1

// newTensor makes a tensor that nobody owns yet, and its handle, if they are made in groups.
func (l *Lifetime) newTensor() (*Tensor, *handle) {
	if l == nil {
		return nil, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.group == 0 {
		return nil, nil
	}
	l.made++
	if n := len(l.free); n > 0 {
		t := l.free[n-1]
		l.free = l.free[:n-1]
		h := t.handle
		*t, *h = Tensor{}, handle{}
		h.own.again = true
		return t, h
	}
	if len(l.fresh.tensors) == 0 {
		l.fresh = slotGroup{make([]Tensor, l.group), make([]handle, l.group)}
		l.group = min(2*l.group, mostTensors)
		if l.again {
			l.groups = append(l.groups, l.fresh)
		}
	}
	t, h := &l.fresh.tensors[0], &l.fresh.handles[0]
	l.fresh.tensors, l.fresh.handles = l.fresh.tensors[1:], l.fresh.handles[1:]
	h.own.again = l.again
	return t, h
}

// Reset is CloseContext, and opens the lifetime again. If it makes tensors in groups, those to come are made where the released ones were: who
// has a pointer to one of these must not use it any more, not even to release it again, nor its [Memory]. What was kept and is not released yet
// stays as it is, until a later Reset finds it released; as long as the lifetime lives, the garbage collector finds no such tensor that was
// dropped ([OnLeak]). Nobody makes tensors with the lifetime's contexts meanwhile.
func (l *Lifetime) Reset(ctx context.Context) error {
	err := l.CloseContext(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = false
	l.made = 0
	if l.group == 0 {
		return err
	}
	if !l.again { // what was made until now may be anywhere: nobody has said that it would be used again
		l.again, l.fresh = true, slotGroup{}
		return err
	}
	l.findFree()
	return err
}

// findFree lists the slots that can be used again. The caller holds the lock.
func (l *Lifetime) findFree() {
	l.free, l.fresh = l.free[:0], slotGroup{}
	for g := len(l.groups) - 1; g >= 0; g-- {
		group := l.groups[g]
		for i := len(group.tensors) - 1; i >= 0; i-- {
			t, h := &group.tensors[i], &group.handles[i]
			if t.handle == nil { // it was never made
				h.released.Store(true)
				h.left.Store(true)
				h.store = &h.own
				h.own.refs.Store(freedAgain)
				t.handle = h
			}
			if leftAlone(t) {
				l.free = append(l.free, t)
			}
		}
	}
}

// leftAlone reports whether nobody is at the slot of t any more.
func leftAlone(t *Tensor) bool {
	h := t.handle
	return h.left.Load() && t.owner.Load() == nil && (h.store != &h.own || h.own.refs.Load() == freedAgain)
}
