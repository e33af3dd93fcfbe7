package autograd

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	randoms, err := c.gatherRandom(ctx)
	if err == nil {
		err = c.writeParallel(ctx, path, randoms)
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

// assembling are the tensors of a file that are put together of the ranks' parts while it is written, one at a time, which all ranks do in the file's order.
type assembling struct {
	state *Base
	whole map[*tensor.Tensor]*safetensors.Streamed
	over  map[string]bool
}

// writeParallel writes the file on rank 0. The others do their share.
func (c Checkpoint) writeParallel(ctx context.Context, path string, randoms map[string]string) (err error) {
	var a *assembling
	if c.Optimizer != nil {
		if a, err = newAssembling(c.Optimizer); err != nil {
			return err
		}
	}
	if c.Parallel.Rank() == 0 {
		err = c.write(ctx, path, a.streamed(), randoms)
	}
	left := a.finish(ctx)
	if err == nil {
		err = left
	}
	if err == nil {
		err = c.Parallel.sound(ctx)
	}
	return err
}

func newAssembling(o Optimizer) (*assembling, error) {
	s, err := coreOf(o)
	if err != nil {
		return nil, err
	}
	a := &assembling{s, map[*tensor.Tensor]*safetensors.Streamed{}, map[string]bool{}}
	for i, n := range s.record().Tensors {
		r := replicaOf(s.params[i].Parameter)
		if r == nil || !r.sharded() {
			continue
		}
		for k, part := range s.state[i][:n] {
			w := &safetensors.Streamed{Name: s.slotName(i, k), Dtype: part.Dtype(), Shape: r.Value().Shape()}
			w.Write = func(ctx context.Context, to io.Writer) error {
				a.over[w.Name] = true
				if err := a.write(ctx, to, i, part); err != nil {
					return r.of.failed(fmt.Sprintf("gathering the state of parameter %q", r.name), err)
				}
				return nil
			}
			a.whole[part] = w
		}
	}
	return a, nil
}

// streamed are the tensors, not nil, if there is an optimiser.
func (a *assembling) streamed() map[*tensor.Tensor]*safetensors.Streamed {
	if a == nil {
		return nil
	}
	return a.whole
}

// finish does this rank's share of what it has not written: all of it, but on rank 0, and there what came behind an error, as the others don't know of that yet.
func (a *assembling) finish(ctx context.Context) error {
	if a == nil {
		return nil
	}
	var left []safetensors.Streamed
	for _, w := range a.whole {
		if !a.over[w.Name] {
			left = append(left, *w)
		}
	}
	safetensors.SortStreamed(left)
	for _, t := range left {
		if err := t.Write(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// write puts the tensor together of which this rank has the part of parameter i, and writes it, unless to is nil.
func (a *assembling) write(ctx context.Context, to io.Writer, i int, part *tensor.Tensor) error {
	s := a.state
	r := replicaOf(s.params[i].Parameter)
	if err := s.fetch(ctx, []int{i}); err != nil {
		return err
	}
	t, err := r.assemble(ctx, part)
	if err == nil && to != nil {
		if err = tensor.WriteBytes(ctx, t, to); err == nil {
			err = r.of.comm.AsyncError() // what was written is undefined then
		}
	}
	return errors.Join(err, t.ReleaseContext(ctx), s.park(ctx, []int{i}))
}

// assemble returns a tensor of all ranks' parts.
func (r *replica) assemble(ctx context.Context, part *tensor.Tensor) (*tensor.Tensor, error) {
	d := r.of
	t, err := d.rt.New(ctx, part.Dtype(), r.Value().Shape()...)
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
func (s *Base) parts() map[*tensor.Tensor]*replica {
	all := map[*tensor.Tensor]*replica{}
	for i, p := range s.params {
		if r := replicaOf(p.Parameter); r != nil && r.sharded() {
			for _, t := range s.state[i] {
				all[t] = r
			}
		}
	}
	return all
}

// loadParts reads the state, of which some is sharded. What lives on the host is brought in for it.
func (s *Base) loadParts(ctx context.Context, f *safetensors.File, state []NamedTensor, parts map[*tensor.Tensor]*replica) error {
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
	whole, err := r.of.rt.New(ctx, part.Dtype(), r.Value().Shape()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, whole.ReleaseContext(ctx)) }()
	if err := f.LoadInto(ctx, name, whole); err != nil {
		return err
	}
	return r.copyPart(ctx, whole, part, false)
}
