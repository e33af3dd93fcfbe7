package checkpoint

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// A checkpoint of several ranks has the same format as that of one. Rank 0 writes it, with the
// other ranks' parts of the state and their random states. So a training can continue from it with
// any number of ranks, or without ranks.

// Ranks has the methods of a parallel.Parallel that a checkpoint uses.
type Ranks interface {
	// Rank returns this rank, from 0 to Size-1.
	Rank() int
	// Size returns the number of ranks.
	Size() int
	// Gather returns the numbers of all ranks, by rank. Each rank must pass the same number of
	// them. It waits for all ranks, and returns an error if earlier queued work has failed. After
	// an error on one rank the others get one too, from this call or from the next.
	Gather(ctx context.Context, mine []int64) ([][]int64, error)
	// Check waits for queued work, and returns an error if it may have failed. The other ranks'
	// next Gather then fails.
	Check(ctx context.Context) error
}

// failed adds this rank's number to an error.
func failed(r Ranks, what string, err error) error {
	return fmt.Errorf("rank %d of %d: %s: %w", r.Rank(), r.Size(), what, err)
}

// saveRanks is save on all ranks. It returns on all ranks together.
func (c Checkpoint) saveRanks(ctx context.Context, path string) error {
	ctx = tensor.Detached(ctx)
	if err := c.Ranks.Check(ctx); err != nil {
		return failed(c.Ranks, "before the checkpoint", err)
	}
	randoms, err := c.gatherRandom(ctx)
	if err == nil {
		err = c.writeRanks(ctx, path, randoms)
	}
	return agree(ctx, c.Ranks, "writing the checkpoint", err)
}

// agree returns err. If err is nil, it returns an error if another rank has one.
func agree(ctx context.Context, r Ranks, what string, err error) error {
	mine := []int64{0}
	if err != nil {
		mine[0] = 1
	}
	all, asked := r.Gather(ctx, mine)
	switch {
	case err != nil:
		return err
	case asked != nil:
		return failed(r, what, asked)
	}
	var broken []int
	for n, theirs := range all {
		if theirs[0] != 0 {
			broken = append(broken, n)
		}
	}
	if broken != nil {
		return failed(r, what, fmt.Errorf("%w: ranks %v have failed", device.ErrAborted, broken))
	}
	return nil
}

// shardedOf returns the i-th parameter's attachment if its state is sharded, otherwise nil.
func shardedOf(o *optim.Base, i int) optim.Sharded {
	p := o.Parameters()[i]
	if sh, ok := autograd.Attached[optim.Sharded](p.Parameter); ok && sh.StateShape() != nil {
		return sh
	}
	return nil
}

// assembling gathers the ranks' parts of a file's tensors, one tensor at a time, while the file is
// written. All ranks do this in the file's order.
type assembling struct {
	ranks Ranks
	state *optim.Base
	whole map[*tensor.Tensor]*safetensors.Streamed
	over  map[string]bool
}

// writeRanks writes the file on rank 0. The other ranks send their parts.
func (c Checkpoint) writeRanks(ctx context.Context, path string, randoms map[string]string) (err error) {
	var a *assembling
	if c.Optimizer != nil {
		if a, err = c.newAssembling(); err != nil {
			return err
		}
	}
	if c.Ranks.Rank() == 0 {
		err = c.write(ctx, path, a.streamed(), randoms)
	}
	left := a.finish(ctx)
	if err == nil {
		err = left
	}
	return err
}

func (c Checkpoint) newAssembling() (*assembling, error) {
	o, err := optim.CoreOf(c.Optimizer)
	if err != nil {
		return nil, err
	}
	a := &assembling{c.Ranks, o, map[*tensor.Tensor]*safetensors.Streamed{}, map[string]bool{}}
	for i, n := range o.Record().Tensors {
		if shardedOf(o, i) == nil {
			continue
		}
		p := o.Parameters()[i]
		for _, t := range tensorsOf(o, i, n) {
			w := &safetensors.Streamed{Name: t.Name, Dtype: t.Dtype(), Shape: p.Value().Shape()}
			w.Write = func(ctx context.Context, to io.Writer) error {
				a.over[w.Name] = true
				if err := a.write(ctx, to, i, t.Tensor); err != nil {
					return failed(a.ranks, fmt.Sprintf("gathering the state of parameter %q", p.Name), err)
				}
				return nil
			}
			a.whole[t.Tensor] = w
		}
	}
	return a, nil
}

// streamed returns the tensors to gather, which is nil only without an optimiser.
func (a *assembling) streamed() map[*tensor.Tensor]*safetensors.Streamed {
	if a == nil {
		return nil
	}
	return a.whole
}

// finish takes part in gathering the tensors that this rank has not written. On rank 0 these are
// the tensors after an error, because the other ranks still gather them; on other ranks they are
// all tensors.
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

// write gathers the whole tensor of part, a state tensor of parameter i, and writes it, unless to
// is nil.
func (a *assembling) write(ctx context.Context, to io.Writer, i int, part *tensor.Tensor) error {
	return a.state.WithState(ctx, i, func() error {
		t, err := shardedOf(a.state, i).Whole(ctx, part)
		if err == nil && to != nil {
			if err = tensor.WriteBytes(ctx, t, to); err == nil {
				err = a.ranks.Check(ctx) // after an error the written data is undefined
			}
		}
		return errors.Join(err, t.ReleaseContext(ctx))
	})
}

// loadParts reads this rank's parts of the state of the i-th parameter.
func loadParts(ctx context.Context, f *safetensors.File, o *optim.Base, i int, sh optim.Sharded) error {
	ctx = tensor.Detached(ctx)
	return o.WithState(ctx, i, func() error {
		for k, part := range o.State(i) {
			whole, err := part.Runtime().New(ctx, part.Dtype(), o.Parameters()[i].Value().Shape()...)
			if err != nil {
				return err
			}
			if err = f.LoadInto(ctx, slotName(o, i, k), whole); err == nil {
				err = sh.Part(ctx, whole, part)
			}
			if err := errors.Join(err, whole.ReleaseContext(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
}

// randomKeyOf returns the key of a rank's random state.
func randomKeyOf(rank int) string {
	if rank == 0 {
		return randomKey
	}
	return fmt.Sprintf("%s.%d", randomKey, rank)
}

// randomWords is the number of int64 that hold a random state and its length.
const randomWords = 8

// gatherRandom returns the random states of all ranks, as metadata of the checkpoint.
func (c Checkpoint) gatherRandom(ctx context.Context) (map[string]string, error) {
	if c.Init == nil {
		return nil, nil
	}
	state, err := c.Init.RandomState()
	if err != nil {
		return nil, err
	}
	if most := 8 * (randomWords - 1); len(state) > most {
		return nil, fmt.Errorf("%w: a random state of %d bytes: want at most %d", safetensors.ErrState, len(state), most)
	}
	bytes := make([]byte, 8*randomWords)
	bytes[0] = byte(len(state))
	copy(bytes[8:], state)
	mine := make([]int64, randomWords)
	for i := range mine {
		mine[i] = int64(binary.LittleEndian.Uint64(bytes[8*i:]))
	}
	all, err := c.Ranks.Gather(ctx, mine)
	if err != nil {
		return nil, failed(c.Ranks, "gathering random states", err)
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

// seedRank derives the random state of a rank that has none in the checkpoint from rank 0's.
func (c Checkpoint) seedRank(state []byte) {
	of := new(rand.PCG)
	_ = of.UnmarshalBinary(state) // state was checked before
	own, _ := rand.NewPCG(of.Uint64()+uint64(c.Ranks.Rank()), of.Uint64()).MarshalBinary()
	_ = c.Init.SetRandomState(own) // a valid state of a PCG
}
