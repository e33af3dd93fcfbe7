package transfer

import (
	"cmp"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// Consecutive copies in one direction are one step, and a step is one operation if the device
// copies many ranges at once ([device.BatchCopier]). Such a device may copy them in any order, so a
// step whose uploads overlap is queued copy by copy. Submit finds overlaps by sorting, because
// comparing each added upload with all earlier ones took quadratic time.

// add adds a copy to the last step, or begins a new step.
func (b *Batch) add(op Op, host []byte, block memcache.Block, offset int64) {
	if n := len(b.steps); n == 0 || b.steps[n-1].op != op {
		b.steps = append(b.steps, step{op: op})
	}
	s := &b.steps[len(b.steps)-1]
	s.host = append(s.host, host)
	s.device = append(s.device, block.Ptr()+device.Ptr(offset))
	if n := len(b.blocks); n == 0 || b.blocks[n-1] != block {
		b.blocks = append(b.blocks, block)
	}
}

// runSteps queues the steps in their order. It sets w.partial, so that after a later failure the
// steps that were queued are still followed.
func (b *Batch) runSteps(w *work) error {
	for i := range b.steps {
		if err := b.steps[i].run(w); err != nil {
			return err
		}
		w.partial = true
	}
	return nil
}

// run queues a step as one operation if the device can, otherwise copy by copy.
func (s *step) run(w *work) error {
	batch, ok := w.stream.(device.BatchCopier)
	switch {
	case s.op == OpLaunch:
		return w.stream.Launch(&s.launch)
	case s.op == OpH2D && ok && !s.overlap():
		return batch.CopyH2DBatch(s.device, s.host)
	case s.op == OpD2H && ok:
		return batch.CopyD2HBatch(s.host, s.device)
	}
	for i, h := range s.host {
		var err error
		if s.op == OpH2D {
			err = w.stream.CopyH2D(s.device[i], h)
		} else {
			err = w.stream.CopyD2H(h, s.device[i])
		}
		if err != nil {
			return err
		}
		w.partial = true
	}
	return nil
}

// overlap reports whether two uploads write the same bytes.
func (s *step) overlap() bool {
	order := make([]int, len(s.device))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(s.device[i], s.device[j]) })
	for k, i := range order[1:] {
		before := order[k]
		if s.device[i]-s.device[before] < device.Ptr(len(s.host[before])) {
			return true
		}
	}
	return false
}
