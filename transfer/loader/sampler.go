package loader

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/transfer"
)

// Sampler cuts a data set of samples into batches for a [Loader] (torch.utils.data.DataLoader's
// shuffle, batch_size and drop_last).
type Sampler struct {
	// Samples is the number of samples in the data set, Batch that in a batch; each at least 1. An epoch's order takes 8
	// bytes a sample.
	Samples, Batch int
	// Fields are the bytes that one sample takes in each field of a batch; each at least 1.
	Fields []int64
	// Shuffle orders the samples at random, differently in each epoch: the same order for the same Seed and epoch, on any
	// machine. Otherwise they come as they are.
	Shuffle bool
	Seed    uint64
	// DropLast leaves out what does not fill a batch at the end of an epoch.
	DropLast bool
	// Rank is this one of Ranks that share the data set, each with batches of its own (torch.utils.data.DistributedSampler): of the order that all of them make alike, by
	// the same Seed, it has every Ranks-th sample, from the Rank-th on. So the k-th batches of all ranks are together what one rank would have in its k-th batch of Ranks times as many. All ranks have
	// as many samples: the first ones of the order come again at its end, or with DropLast the last ones don't come. Ranks of 0 is 1.
	Rank, Ranks int
}

const maxSamples = min(1<<36, math.MaxInt/8) // the order of 1<<36 takes 512 GiB

// Capacities are the bytes of a whole batch in each field: [Config].Fields. Where a product is no
// number of bytes, it is 0 or math.MaxInt64, which [New] refuses, as Epoch does its factors.
func (s Sampler) Capacities() []int64 {
	c := make([]int64, len(s.Fields))
	for i, n := range s.Fields {
		switch {
		case n < 1 || s.Batch < 1:
		case n > math.MaxInt64/int64(s.Batch):
			c[i] = math.MaxInt64
		default:
			c[i] = n * int64(s.Batch)
		}
	}
	return c
}

// Batches is the number of batches in an epoch. It is 0 if there are no samples, or none in a batch.
func (s Sampler) Batches() int {
	if s.Samples < 1 || s.Batch < 1 {
		return 0
	}
	mine := s.mine()
	n := mine / s.Batch
	if !s.DropLast && mine%s.Batch > 0 {
		n++
	}
	return n
}

// mine is how many samples this rank has of an epoch, those too that fill no batch.
func (s Sampler) mine() int {
	ranks := max(s.Ranks, 1)
	n := s.Samples / ranks
	if !s.DropLast && s.Samples%ranks > 0 {
		n++
	}
	return n
}

// Epoch is the source of an epoch's batches. It calls read for each, on the loader's goroutine,
// with the numbers of the samples and the fields cut to their sizes: read writes sample samples[k]
// at fields[i][k*Fields[i]:]. The slices are read's until it returns. Numbers of a Sampler that
// can't be used wrap [transfer.ErrRange], a nil read [transfer.ErrInvalid].
func (s Sampler) Epoch(number int, read func(ctx context.Context, samples []int, fields [][]byte) error) (Source, error) {
	return s.epochFrom(Position{Epoch: number}, read)
}

func (s Sampler) epochFrom(p Position, read func(ctx context.Context, samples []int, fields [][]byte) error) (Source, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if read == nil {
		return nil, fmt.Errorf("loader: Epoch without a function that reads samples: %w", transfer.ErrInvalid)
	}
	return s.cut(s.rest(p), read), nil
}

// rest is an epoch's order from a position on.
func (s Sampler) rest(p Position) []int {
	order := s.Order(p.Epoch)
	return order[min(p.Batch*s.Batch, len(order)):]
}

// cut is the source of the batches of an order.
func (s Sampler) cut(order []int, read func(ctx context.Context, samples []int, fields [][]byte) error) Source {
	next := 0
	return func(ctx context.Context, fields [][]byte) error {
		n := min(s.Batch, len(order)-next)
		if n == 0 {
			return io.EOF
		}
		if len(fields) != len(s.Fields) {
			return fmt.Errorf("loader: the loader has %d fields, the sampler %d: %w: want Config.Fields from Capacities",
				len(fields), len(s.Fields), transfer.ErrRange)
		}
		for i, f := range fields {
			want := int64(n) * s.Fields[i]
			if int64(len(f)) < want {
				return fmt.Errorf("loader: %d samples take %d bytes of field %d: %w: the loader's has %d", n, want, i, transfer.ErrRange, len(f))
			}
			fields[i] = f[:want]
		}
		samples := order[next : next+n]
		next += n
		return read(ctx, samples, fields)
	}
}

// Order is the order of an epoch's samples on this rank, without those that DropLast leaves out. It is nil where
// Epoch refuses the number of samples, or the rank.
func (s Sampler) Order(epoch int) []int {
	if s.Samples < 1 || int64(s.Samples) > maxSamples || !s.isRank() {
		return nil
	}
	order := make([]int, s.Samples)
	for i := range order {
		order[i] = i
	}
	if s.Shuffle {
		r := rand.New(rand.NewPCG(s.Seed, uint64(epoch)))
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	if s.Ranks > 1 {
		order = s.dealt(order)
	}
	if s.DropLast {
		order = order[:s.Batches()*s.Batch]
	}
	return order
}

// dealt is this rank's part of the order of all.
func (s Sampler) dealt(order []int) []int {
	mine := make([]int, s.mine())
	for k := range mine {
		mine[k] = order[(s.Rank+k*s.Ranks)%len(order)]
	}
	return mine
}

// isRank reports whether Rank is one of Ranks.
func (s Sampler) isRank() bool { return s.Ranks >= 0 && s.Rank >= 0 && s.Rank < max(s.Ranks, 1) }

// check says why there is no epoch: numbers below 1, or a batch larger than a field may be.
func (s Sampler) check() error {
	if s.Samples < 1 || s.Batch < 1 || len(s.Fields) == 0 {
		return fmt.Errorf("loader: a Sampler of %d samples in batches of %d with %d fields: %w: want at least 1 of each",
			s.Samples, s.Batch, len(s.Fields), transfer.ErrRange)
	}
	if int64(s.Samples) > maxSamples {
		return fmt.Errorf("loader: a Sampler of %d samples: %w: want %d at most", s.Samples, transfer.ErrRange, int64(maxSamples))
	}
	if !s.isRank() {
		return fmt.Errorf("loader: a Sampler of rank %d of %d: %w: want one of 0 to %d", s.Rank, s.Ranks, transfer.ErrRange, max(s.Ranks, 1)-1)
	}
	for i, n := range s.Fields {
		if n < 1 || n > maxField/int64(s.Batch) {
			return fmt.Errorf("loader: a Sampler with %d bytes a sample in field %d: %w: want 1 to %d for batches of %d",
				n, i, transfer.ErrRange, maxField/int64(s.Batch), s.Batch)
		}
	}
	return nil
}
