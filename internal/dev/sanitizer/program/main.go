// Program makes a stream mistake, or does the same correctly.
//
//	program wait|record alone|few|many|queried|observed|matmul mistake|correct
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: program wait|record alone|few|many|queried|observed|matmul mistake|correct")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3] == "correct"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// bytes is the size of the block of the mistake: a matrix of 32 x 32 float32.
const bytes = 32 * 32 * 4

// bench has a producer and a consumer stream for the programs.
type bench struct {
	ctx      context.Context
	dev      *host.Device
	cache    *memcache.Cache
	producer device.Stream
	consumer device.Stream
	scratch  map[device.Stream]memcache.Block
}

func run(mistake, form string, correct bool) (err error) {
	b := &bench{ctx: context.Background(), scratch: make(map[device.Stream]memcache.Block)}
	if b.dev, err = host.New(host.Config{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.dev.Close()) }()
	f, err := newForm(form, b)
	if err != nil {
		return err
	}
	if b.cache == nil {
		if b.cache, err = memcache.New(b.dev, memcache.Config{}); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, b.cache.Close()) }()
	for _, s := range []*device.Stream{&b.producer, &b.consumer} {
		if *s, err = b.dev.NewStream(device.StreamOptions{}); err != nil {
			return err
		}
		if b.scratch[*s], err = b.cache.Alloc(b.ctx, bytes, *s); err != nil {
			return err
		}
	}
	// Closing a stream waits for it, and hides no earlier mistake.
	defer func() {
		err = errors.Join(err, b.producer.Close(), b.consumer.Close())
		for _, s := range b.scratch {
			err = errors.Join(err, s.Free())
		}
	}()
	if f.begin != nil {
		if err := f.begin(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.end()) }()
	}
	switch mistake {
	case "wait":
		err = missingWait(b, f, correct)
	case "record":
		err = missingRecord(b, f, correct)
	default:
		return fmt.Errorf("unknown mistake %q", mistake)
	}
	if err != nil || f.after == nil {
		return err
	}
	return f.after()
}

// missingWait reads on the consumer's stream what the producer's writes, without waiting for it.
func missingWait(b *bench, f *form, correct bool) error {
	x, err := b.cache.Alloc(b.ctx, bytes, b.producer)
	if err != nil {
		return err
	}
	if err := f.write(b.producer, x); err != nil {
		return err
	}
	if correct {
		if err := b.handOver(b.producer, b.consumer); err != nil {
			return err
		}
	}
	if f.between != nil {
		if err := f.between(); err != nil {
			return err
		}
	}
	return errors.Join(f.read(b.consumer, x), x.RecordStream(b.consumer), x.Free())
}

// missingRecord frees a block that the consumer's stream may still read, without recording that
// stream. The next allocation on the block's own stream gets its memory, and writes it.
func missingRecord(b *bench, f *form, correct bool) error {
	x, err := b.cache.Alloc(b.ctx, bytes, b.producer)
	if err != nil {
		return err
	}
	if err := errors.Join(f.write(b.producer, x), b.handOver(b.producer, b.consumer), f.read(b.consumer, x)); err != nil {
		return err
	}
	if correct {
		if err := x.RecordStream(b.consumer); err != nil {
			return err
		}
	}
	if f.between != nil {
		if err := f.between(); err != nil {
			return err
		}
	}
	if err := x.Free(); err != nil {
		return err
	}
	y, err := b.cache.Alloc(b.ctx, bytes, b.producer)
	if err != nil {
		return err
	}
	if !correct && y.Ptr() != x.Ptr() {
		return errors.New("the memory was not reused: the program shows nothing")
	}
	return errors.Join(f.write(b.producer, y), y.Free())
}

// handOver makes one stream wait for the queued work of another.
func (b *bench) handOver(from, to device.Stream) error {
	e, err := b.dev.NewEvent(device.EventOptions{})
	if err != nil {
		return err
	}
	return errors.Join(from.Record(e), to.Wait(e), e.Close())
}

// fill writes a block with a plain Go kernel.
func (b *bench) fill(s device.Stream, x memcache.Block) error {
	memory, err := b.dev.Bytes(x.Ptr(), bytes)
	if err != nil {
		return err
	}
	return s.Launch(&device.Launch{Name: "fill", Writes: []device.Range{x.Range(0, bytes)}, Func: func() {
		for i := range memory {
			memory[i] = byte(i)
		}
	}})
}

// sum reads a block with a plain Go kernel.
func (b *bench) sum(s device.Stream, x memcache.Block) error {
	memory, err := b.dev.Bytes(x.Ptr(), bytes)
	if err != nil {
		return err
	}
	return s.Launch(&device.Launch{Name: "sum", Reads: []device.Range{x.Range(0, bytes)}, Func: func() {
		n := 0
		for _, v := range memory {
			n += int(v)
		}
	}})
}
