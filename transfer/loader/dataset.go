package loader

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"

	"github.com/cistern-ml/cistern/transfer"
)

// Dataset is a data set whose samples are read one by one (torch.utils.data.Dataset).
type Dataset[T any] interface {
	// Len returns the number of samples. It must not change.
	Len() int
	// At returns sample i, from 0 to Len()-1. The workers of a [Batcher] call it concurrently. The
	// sample belongs to the caller, so later calls must not change it.
	At(i int) (T, error)
}

// BatcherConfig are the options of a [Batcher].
type BatcherConfig[T any] struct {
	// Sampler orders the samples and divides them into batches. Its Samples may be left out; they
	// are the dataset's Len. Without Collate its Fields may be left out too; they are then the
	// sizes of the first sample.
	Sampler Sampler
	// Workers is the number of goroutines that call At and Transform, at most 1024. 0 is
	// runtime.GOMAXPROCS(0). With 1 they are never called concurrently.
	Workers int
	// Transform changes a sample at random (data augmentation). r depends only on the sampler's
	// seed, the epoch and the sample's index, so that the result is the same with any number of
	// workers, in any batch, and after a resume. If it is nil, samples are unchanged.
	Transform func(sample T, r *rand.Rand) (T, error)
	// Collate writes samples into the fields of a batch, on the loader's goroutine. The fields are
	// pinned memory of len(samples) times Sampler.Fields bytes, with undefined contents; Collate
	// shortens those that it does not fill, as a [Source] does. It must not keep either slice.
	//
	// If it is nil, the samples are stacked and must all have the same sizes. A sample is a number,
	// an array or a slice of numbers, or a struct with exported fields of these types, each of
	// which becomes a field of the batch. Numbers are those of [transfer.Number], so labels are
	// int32 or int64, not int.
	Collate func(samples []T, fields [][]byte) error
}

// Batcher makes batches of a dataset's samples for a [Loader]. Both together are like
// torch.utils.data.DataLoader. Goroutines read the samples ahead. The batches and their order are
// those of its sampler with any number of goroutines. Several loaders may use a Batcher at the same
// time. It needs no closing.
type Batcher[T any] struct {
	// Sampler is the configuration's, with the values that were left out. [Sampler.Capacities]
	// returns the smallest valid [Config.Fields], and [Sampler.Next] the [Position] after a batch.
	Sampler
	data    Dataset[T]
	config  BatcherConfig[T]
	workers int
	parts   []part // of a sample, for stack; nil with Collate
}

const maxWorkers = 1 << 10

// NewBatcher returns a batcher. It reads the first sample if Sampler.Fields are left out. Errors
// wrap [transfer.ErrRange] for values out of range and for a dataset that fills no batch, and
// [transfer.ErrInvalid] for a nil dataset and for samples that can't be stacked.
func NewBatcher[T any](data Dataset[T], config BatcherConfig[T]) (*Batcher[T], error) {
	if data == nil {
		return nil, fmt.Errorf("loader: NewBatcher without a dataset: %w", transfer.ErrInvalid)
	}
	b := &Batcher[T]{Sampler: config.Sampler, data: data, config: config, workers: config.Workers}
	if b.workers == 0 {
		b.workers = min(runtime.GOMAXPROCS(0), maxWorkers)
	}
	if b.workers < 0 || b.workers > maxWorkers {
		return nil, fmt.Errorf("loader: NewBatcher with %d workers: %w: want 1 to %d, or 0 for GOMAXPROCS",
			b.workers, transfer.ErrRange, maxWorkers)
	}
	n, err := b.len()
	if err != nil {
		return nil, fmt.Errorf("loader: NewBatcher: %w: the dataset has no length: %w", transfer.ErrInvalid, err)
	}
	if b.Samples != 0 && b.Samples != n {
		return nil, fmt.Errorf("loader: NewBatcher: the sampler has %d samples, the dataset %d: %w: leave Samples out",
			b.Samples, n, transfer.ErrRange)
	}
	b.Samples = n
	if config.Collate == nil {
		if err := b.measure(); err != nil {
			return nil, fmt.Errorf("loader: NewBatcher: %w", err)
		}
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	if b.Batches() == 0 {
		return nil, fmt.Errorf("loader: NewBatcher: %d samples of rank %d of %d fill no batch of %d, and DropLast leaves out the rest: %w",
			n, b.Rank, max(b.Ranks, 1), b.Batch, transfer.ErrRange)
	}
	return b, nil
}

// len returns the dataset's length. It returns a panic, such as of a nil pointer, as an error.
func (b *Batcher[T]) len() (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return b.data.Len(), nil
}

// measure sets the parts and sizes for stacking.
func (b *Batcher[T]) measure() (err error) {
	if b.parts, err = partsOf[T](); err != nil || len(b.Fields) > 0 || b.Samples < 1 {
		return err
	}
	first := b.read(0, 0)
	if first.err != nil {
		return first.err
	}
	b.Fields = sizes(b.parts, &first.sample)
	return nil
}

// outcome is the result of reading a sample.
type outcome[T any] struct {
	sample T
	err    error
}

// read reads sample i for an epoch. It returns a panic as an error.
func (b *Batcher[T]) read(epoch, i int) (o outcome[T]) {
	defer func() {
		if v := recover(); v != nil {
			o.err = &PanicError{v, debug.Stack()}
		}
		if o.err != nil {
			o.err = fmt.Errorf("sample %d: %w", i, o.err)
		}
	}()
	o.sample, o.err = b.data.At(i)
	if o.err == nil && b.config.Transform != nil {
		o.sample, o.err = b.config.Transform(o.sample, b.random(epoch, i))
	}
	return o
}

// random returns the random source of a sample in an epoch.
func (b *Batcher[T]) random(epoch, i int) *rand.Rand {
	var seed [32]byte
	for k, v := range [...]uint64{b.Seed, uint64(epoch), uint64(i)} {
		binary.LittleEndian.PutUint64(seed[8*k:], v)
	}
	return rand.New(rand.NewChaCha8(seed))
}

// String returns a text such as "batcher of 60000 samples: 469 batches of 128, 8 workers".
func (b *Batcher[T]) String() string {
	return fmt.Sprintf("batcher of %d samples: %d batches of %d, %d workers", b.Samples, b.Batches(), b.Batch, b.workers)
}
