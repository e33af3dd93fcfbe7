package autograd

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// A checkpoint of several ranks is that of one: rank 0 writes it, with the others' parts of the state put together and their random states beside its own. So it can be gone on from with another number of
// ranks, and without any.

// saveParallel is save on all ranks, which it ends on all together.
func (c Checkpoint) saveParallel(ctx context.Context, path string) error {
	d := c.Parallel
	ctx = tensor.Detached(ctx)
	if err := d.sound(ctx); err != nil {
		return d.failed("before the checkpoint", err)
	}
	whole, err := c.gatherState(ctx)
	var randoms map[string]string
	if err == nil {
		randoms, err = c.gatherRandom(ctx)
	}
	if err == nil {
		err = d.sound(ctx)
	}
	if err == nil && d.Rank() == 0 {
		err = c.write(ctx, path, whole, randoms)
	}
	for _, t := range whole {
		err = errors.Join(err, t.ReleaseContext(ctx))
	}
	return d.agree(ctx, "writing the checkpoint", err)
}

// sound waits for what is queued, and is an error if that may have left anything behind.
func (d *Parallel) sound(ctx context.Context) error {
	if err := d.rt.Synchronize(ctx); err != nil {
		return err
	}
	return d.comm.AsyncError()
}

// agree is an error on all ranks if one has one: its own, or that another one has one.
func (d *Parallel) agree(ctx context.Context, what string, err error) error {
	mine := []int64{0}
	if err != nil {
		mine[0] = 1
	}
	all, asked := d.gather(ctx, mine)
	switch {
	case err != nil:
		return err
	case asked != nil:
		return d.failed(what, asked)
	}
	var failed []int
	for r, theirs := range all {
		if theirs[0] != 0 {
			failed = append(failed, r)
		}
	}
	if failed != nil {
		return d.failed(what, fmt.Errorf("%w: ranks %v have failed", device.ErrAborted, failed))
	}
	return nil
}

// gatherState puts together the state of sharded parameters: what is whole on rank 0, by this rank's part.
func (c Checkpoint) gatherState(ctx context.Context) (whole map[*tensor.Tensor]*tensor.Tensor, err error) {
	if c.Optimizer == nil {
		return nil, nil
	}
	s, err := optimizerStateOf(c.Optimizer)
	if err != nil {
		return nil, err
	}
	whole = map[*tensor.Tensor]*tensor.Tensor{}
	for i, n := range s.record().Tensors {
		r := s.params[i].sharded()
		if r == nil {
			continue
		}
		err := s.fetch(ctx, []int{i})
		for k := 0; k < n && err == nil; k++ {
			part := s.state[i][k]
			var t *tensor.Tensor
			if t, err = r.assemble(ctx, part); err == nil && r.of.Rank() == 0 {
				whole[part] = t
				continue
			}
			err = errors.Join(err, t.ReleaseContext(ctx))
		}
		if err = errors.Join(err, s.park(ctx, []int{i})); err != nil {
			return whole, r.of.failed(fmt.Sprintf("gathering the state of parameter %q", r.name), err)
		}
	}
	return whole, nil
}

// assemble returns a tensor of all ranks' parts.
func (r *replica) assemble(ctx context.Context, part *tensor.Tensor) (*tensor.Tensor, error) {
	d := r.of
	t, err := d.rt.New(ctx, part.Dtype(), r.value.Shape()...)
	if err != nil {
		return nil, err
	}
	err = r.copyPart(ctx, t, part, true)
	if err == nil {
		err = d.fork()
	}
	if err == nil {
		err = d.handOver(d.grouped(func() error { return r.gather(t) }), t)
	}
	return t, err
}

// copyPart copies this rank's part into a whole tensor, or out of it.
func (r *replica) copyPart(ctx context.Context, whole, part *tensor.Tensor, into bool) error {
	view, err := r.view(ctx, whole)
	if err != nil {
		return err
	}
	if into {
		err = r.of.rt.CopyInPlace(ctx, view, part)
	} else {
		err = r.of.rt.CopyInPlace(ctx, part, view)
	}
	return errors.Join(err, view.ReleaseContext(ctx))
}

// randomKeyOf is the key of a rank's random state.
func randomKeyOf(rank int) string {
	if rank == 0 {
		return randomKey
	}
	return fmt.Sprintf("%s.%d", randomKey, rank)
}

// randomWords is how many int64 a random state takes, with its length.
const randomWords = 8

// gatherRandom are the random states of all ranks, as the checkpoint has them.
func (c Checkpoint) gatherRandom(ctx context.Context) (map[string]string, error) {
	if c.Init == nil {
		return nil, nil
	}
	state, err := c.Init.source.MarshalBinary()
	if err != nil || len(state) > 8*(randomWords-1) {
		return nil, errors.Join(err, fmt.Errorf("%w: a random state of %d bytes", ErrState, len(state)))
	}
	bytes := make([]byte, 8*randomWords)
	bytes[0] = byte(len(state))
	copy(bytes[8:], state)
	mine := make([]int64, randomWords)
	for i := range mine {
		mine[i] = int64(binary.LittleEndian.Uint64(bytes[8*i:]))
	}
	all, err := c.Parallel.gather(ctx, mine)
	if err != nil {
		return nil, c.Parallel.failed("gathering random states", err)
	}
	texts := map[string]string{}
	for r, theirs := range all {
		for i, w := range theirs {
			binary.LittleEndian.PutUint64(bytes[8*i:], uint64(w))
		}
		text, err := json.Marshal(bytes[8:][:bytes[0]])
		if err != nil {
			return nil, err
		}
		texts[randomKeyOf(r)] = string(text)
	}
	return texts, nil
}

// seedRank makes the random state of a rank that was not there when the checkpoint was written, of rank 0's.
func (c Checkpoint) seedRank(state []byte) {
	of := new(rand.PCG)
	_ = of.UnmarshalBinary(state) // which was read
	c.Init.source.Seed(of.Uint64()+uint64(c.Parallel.Rank()), of.Uint64())
}

// parts are the sharded parameters, by the tensors of their state.
func (s *optimizerState) parts() map[*tensor.Tensor]*replica {
	all := map[*tensor.Tensor]*replica{}
	for i, p := range s.params {
		if r := p.sharded(); r != nil {
			for _, t := range s.state[i] {
				all[t] = r
			}
		}
	}
	return all
}

// loadParts reads the state, of which some is sharded. What lives on the host is brought in for it.
func (s *optimizerState) loadParts(ctx context.Context, f *safetensors.File, state []NamedTensor, parts map[*tensor.Tensor]*replica) error {
	for i, ts := range s.state {
		if err := s.fetch(ctx, []int{i}); err != nil {
			return err
		}
		for _, t := range state {
			if !slices.Contains(ts, t.Tensor) {
				continue
			}
			var err error
			if r := parts[t.Tensor]; r != nil {
				err = r.loadPart(ctx, f, t.Name, t.Tensor)
			} else {
				err = f.LoadInto(ctx, t.Name, t.Tensor)
			}
			if err != nil {
				return err
			}
		}
		if err := s.park(ctx, []int{i}); err != nil {
			return err
		}
	}
	return nil
}

// loadPart reads this rank's part of a tensor of a file.
func (r *replica) loadPart(ctx context.Context, f *safetensors.File, name string, part *tensor.Tensor) (err error) {
	ctx = tensor.Detached(ctx)
	whole, err := r.of.rt.New(ctx, part.Dtype(), r.value.Shape()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, whole.ReleaseContext(ctx)) }()
	if err := f.LoadInto(ctx, name, whole); err != nil {
		return err
	}
	return r.copyPart(ctx, whole, part, false)
}
