package parallel

import (
	"context"
	"fmt"
	"hash/crc64"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// start compares the ranks' models and copies rank 0's parameters and buffers to all ranks.
func (d *Parallel) start(ctx context.Context) error {
	if err := d.compareModels(ctx); err != nil {
		return err
	}
	ones := make([]int32, len(d.replicas))
	for i := range ones {
		ones[i] = 1
	}
	own := memcache.WithCategory(ctx, memcache.CategoryWorkspace)
	var err error
	if d.ones, err = tensor.FromSlice(own, d.rt, ones); err != nil {
		return err
	}
	if d.counts, err = tensor.FromSlice(own, d.rt, ones); err != nil {
		return err
	}
	all := make([]*tensor.Tensor, len(d.state))
	for i, t := range d.state {
		all[i] = t.Tensor
	}
	// compareModels has waited for the runtime's stream, so the values are final.
	if err := d.handOver(d.grouped(func() error { return d.broadcastAll(all) }), all...); err != nil {
		return d.failed("broadcasting parameters and buffers", err)
	}
	last := make([]int, len(d.replicas))
	for i := range last {
		last[i] = len(last) - 1 - i // the last layer's gradient is final first
	}
	d.cut(last)
	return nil
}

func (d *Parallel) broadcastAll(ts []*tensor.Tensor) error {
	for _, t := range ts {
		if err := d.broadcast(t); err != nil {
			return err
		}
	}
	return nil
}

// compareModels returns an error if the parameters, buffers or options of a rank differ from rank
// 0's.
func (d *Parallel) compareModels(ctx context.Context) error {
	trained := make(map[*tensor.Tensor]bool)
	for _, r := range d.replicas {
		trained[r.Value()] = true
	}
	mine := make([]int64, len(d.state))
	for i, t := range d.state {
		mine[i] = hashOf(fmt.Sprintf("%q %v %v %v", t.Name, t.Dtype(), t.Shape(), trained[t.Tensor]))
	}
	const what = "comparing models"
	all, err := d.Gather(ctx, []int64{int64(len(d.state)), hashOf(fmt.Sprintf("%+v", d.cfg))})
	if err != nil {
		return d.failed(what, err)
	}
	for r, theirs := range all {
		switch {
		case theirs[0] != all[0][0]:
			return d.failed(what, fmt.Errorf("%w: the model of rank %d has %d parameters and buffers, and rank 0's has %d", device.ErrMismatch, r, theirs[0], all[0][0]))
		case theirs[1] != all[0][1]:
			return d.failed(what, fmt.Errorf("%w: rank %d has another Config than rank 0; this rank's is %+v", device.ErrMismatch, r, d.cfg))
		}
	}
	if all, err = d.Gather(ctx, mine); err != nil {
		return d.failed(what, err)
	}
	if r, i := differing(all); r > 0 {
		t := d.state[i]
		return d.failed(what, fmt.Errorf("%w: on rank %d, %q, which here is %v %v, has another name, dtype or shape than on rank 0, or is trained on one of them only",
			device.ErrMismatch, r, t.Name, t.Dtype(), t.Shape()))
	}
	return nil
}

// differing returns the first rank with another number than rank 0, and the number's index; 0 if
// there is none.
func differing(all [][]int64) (rank, index int) {
	for r, theirs := range all {
		for i := range theirs {
			if theirs[i] != all[0][i] {
				return r, i
			}
		}
	}
	return 0, 0
}

var crcTable = crc64.MakeTable(crc64.ECMA)

func hashOf(s string) int64 { return int64(crc64.Checksum([]byte(s), crcTable)) }

// Verify compares the parameters and buffers of all ranks by a hash of their bits. If one differs
// from rank 0's, every rank returns an error that names the first such tensor and the ranks, and
// wraps [device.ErrMismatch]. Buffers are left out if each rank has its own
// ([Config].LocalBuffers). All ranks must call it. It reads the whole model and waits for the other
// ranks.
func (d *Parallel) Verify(ctx context.Context) error {
	if err := d.verify(ctx, d.cfg.LocalBuffers); err != nil {
		return fmt.Errorf("parallel: Verify: %w", err)
	}
	return nil
}

// verify is Verify, without the buffers if local is set.
func (d *Parallel) verify(ctx context.Context, local bool) error {
	ctx = tensor.Detached(ctx)
	mine := make([]int64, len(d.state))
	for i, t := range d.state {
		if local && slices.Contains(d.buffers, t.Tensor) {
			continue
		}
		h := crc64.New(crcTable)
		if err := tensor.WriteBytes(ctx, t.Tensor, h); err != nil {
			return d.failed(fmt.Sprintf("reading %q", t.Name), d.tell(err))
		}
		mine[i] = int64(h.Sum64())
	}
	all, err := d.Gather(ctx, mine)
	if err != nil {
		return d.failed("comparing parameters", err)
	}
	for i, t := range d.state {
		var wrong []int
		for r, theirs := range all {
			if theirs[i] != all[0][i] {
				wrong = append(wrong, r)
			}
		}
		if wrong != nil {
			return d.failed("comparing parameters", fmt.Errorf("%w: %q of ranks %v is not that of rank 0", device.ErrMismatch, t.Name, wrong))
		}
	}
	return nil
}
