package tensor

import "context"

// A lifetime that makes tensors in groups has slots, each with a tensor and its handle. After
// Reset, new tensors use the slots of released ones: a training step makes the same tensors as the
// step before, and so creates no garbage. A slot is reused when nothing can access it any more. Its
// tensor was released, by a call that has returned. So was every tensor that shared its memory, and
// no graph keeps that memory. The release reports this as its last action (handle.left,
// freedAgain), because it may run on another goroutine than the lifetime's. Slots of live tensors
// stay, and the next Reset checks them again.

// slots are the slots of a lifetime.
type slots struct {
	made   int         // tensors made in groups since Reset
	group  int         // the size of the next group; 0: no groups
	fresh  slotGroup   // for new tensors
	again  bool        // the lifetime was reset, so slots are reused
	groups []slotGroup // groups whose slots are reused
	free   []*Tensor   // tensors of reusable slots, with their handles; the next one is last
}

type slotGroup struct {
	tensors []Tensor
	handles []handle
}

// The minimum and the maximum size of a group.
const (
	leastTensors = 16
	mostTensors  = 512
)

// freedAgain replaces the references of a freed storage in a slot that is reused.
const freedAgain = -1

// newTensor returns a tensor that no lifetime owns yet, and its handle, if the lifetime makes them
// in groups. Otherwise it returns nil.
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

// Reset is CloseContext, and then opens the lifetime again. If it makes tensors in groups, new
// tensors use the slots of released ones. So a pointer to a released tensor must not be used any
// more, not even to release it again, nor its [Memory]. A tensor that was kept and is not released
// yet stays unchanged, until a later Reset finds it released. As long as the lifetime is reachable,
// the garbage collector finds no such tensor that was dropped ([OnLeak]). No tensors may be made
// with the lifetime's contexts during Reset.
func (l *Lifetime) Reset(ctx context.Context) error {
	err := l.CloseContext(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = false
	l.made = 0
	if l.group == 0 {
		return err
	}
	// Earlier tensors may still be referenced, because reuse was not announced when they were made.
	if !l.again {
		l.again, l.fresh = true, slotGroup{}
		return err
	}
	l.findFree()
	return err
}

// findFree lists the slots that can be reused. The caller holds the lock.
func (l *Lifetime) findFree() {
	l.free, l.fresh = l.free[:0], slotGroup{}
	for g := len(l.groups) - 1; g >= 0; g-- {
		group := l.groups[g]
		for i := len(group.tensors) - 1; i >= 0; i-- {
			t, h := &group.tensors[i], &group.handles[i]
			if t.handle == nil { // the slot was never used
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

// leftAlone reports whether the slot of t can be reused.
func leftAlone(t *Tensor) bool {
	h := t.handle
	return h.left.Load() && t.owner.Load() == nil && (h.store != &h.own || h.own.refs.Load() == freedAgain)
}
