package loader

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/transfer"
)

// Sampler divides a data set of samples into batches for a [Loader] (torch.utils.data.DataLoader's
// shuffle, batch_size and drop_last).
type Sampler struct {
	// Samples is the number of samples in the data set, Batch the number in a batch; each at least
	// 1. An epoch's order takes 8 bytes per sample.
	Samples, Batch int
	// Fields are the bytes of one sample in each field of a batch; each at least 1.
	Fields []int64
	// Shuffle orders the samples at random, differently in each epoch. The order depends only on
	// Seed and the epoch, on any machine. Without Shuffle the order is that of the data set.
	Shuffle bool
	Seed    uint64
	// DropLast leaves out the samples at the end of an epoch that do not fill a batch.
	DropLast bool
	// Rank, from 0 to Ranks-1, selects this rank's share of a data set that Ranks ranks share
	// (torch.utils.data.DistributedSampler). All ranks compute the same order with the same Seed,
	// and each takes every Ranks-th sample from the Rank-th on. So the k-th batches of all ranks
	// together are the k-th batch of a single rank with a batch Ranks times as large. All ranks
	// have the same number of samples: the first samples of the order are repeated at its end, or
	// with DropLast the last ones are left out. 0 Ranks is 1.
	Rank, Ranks int
}

const maxSamples = min(1<<36, math.MaxInt/8) // the order of 1<<36 takes 512 GiB

// Capacities returns the bytes of a whole batch in each field, for [Config].Fields. If factors are
// invalid or their product overflows, it is 0 or math.MaxInt64, which [New] refuses; Epoch refuses
// these factors too.
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

// Batches returns the number of batches in an epoch. It is 0 if Samples or Batch is less than 1, or
// if DropLast leaves no whole batch.
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

// mine returns the number of this rank's samples in an epoch, including those that fill no batch.
func (s Sampler) mine() int {
	ranks := max(s.Ranks, 1)
	n := s.Samples / ranks
	if !s.DropLast && s.Samples%ranks > 0 {
		n++
	}
	return n
}

// Epoch returns the source of an epoch's batches. The source calls read for each batch, on the
// loader's goroutine, with the indices of the samples and the fields cut to their sizes: read
// writes sample samples[k] at fields[i][k*Fields[i]:]. read must not keep the slices. Invalid
// values of the Sampler wrap [transfer.ErrRange], a nil read [transfer.ErrInvalid].
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

// rest returns an epoch's order from a position on.
func (s Sampler) rest(p Position) []int {
	order := s.Order(p.Epoch)
	return order[min(p.Batch*s.Batch, len(order)):]
}

// cut returns the source of the batches of an order.
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

// Order returns the order of an epoch's samples on this rank, without those that DropLast leaves
// out. It is nil if Samples or the rank is invalid.
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

// dealt returns this rank's part of the common order.
func (s Sampler) dealt(order []int) []int {
	mine := make([]int, s.mine())
	for k := range mine {
		mine[k] = order[(s.Rank+k*s.Ranks)%len(order)]
	}
	return mine
}

func (s Sampler) isRank() bool { return s.Ranks >= 0 && s.Rank >= 0 && s.Rank < max(s.Ranks, 1) }

// check returns an error for values below 1, and for a batch larger than a field may be.
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
			return fmt.Errorf("loader: a Sampler with %d bytes per sample in field %d: %w: want 1 to %d for batches of %d",
				n, i, transfer.ErrRange, maxField/int64(s.Batch), s.Batch)
		}
	}
	return nil
}
