package main

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// form is the code around the mistake. Nil functions do nothing.
type form struct {
	write, read func(s device.Stream, x memcache.Block) error
	begin       func() error // once the streams exist
	between     func() error // before the second of the two racing accesses
	after       func() error
	end         func() error // undoes begin
}

func newForm(name string, b *bench) (*form, error) {
	f := &form{write: b.fill, read: b.sum}
	switch name {
	case "alone":
	case "few":
		f.after = func() error { return b.further(10) }
	case "many":
		f.after = func() error { return b.further(2000) }
	case "queried":
		b.queried(f)
	case "observed":
		return f, b.observed(f)
	case "matmul":
		b.matmul(f)
	default:
		return nil, fmt.Errorf("unknown form %q", name)
	}
	return f, nil
}

// further queues n operations on each stream.
func (b *bench) further(n int) error {
	for range n / 2 {
		for s, x := range b.scratch {
			if err := errors.Join(b.fill(s, x), b.sum(s, x)); err != nil {
				return err
			}
		}
	}
	return nil
}

// queried finds an event complete that was recorded on both streams before anything else.
func (b *bench) queried(f *form) {
	var earlier []device.Event
	f.begin = func() error {
		for s, x := range b.scratch {
			e, err := b.dev.NewEvent(device.EventOptions{})
			if err != nil {
				return err
			}
			earlier = append(earlier, e)
			if err := errors.Join(b.fill(s, x), s.Record(e)); err != nil {
				return err
			}
		}
		return nil
	}
	f.between = func() error {
		for _, e := range earlier {
			for done := false; !done; runtime.Gosched() {
				var err error
				if done, err = e.Query(); err != nil {
					return err
				}
			}
		}
		return nil
	}
	f.end = func() error {
		var errs []error
		for _, e := range earlier {
			errs = append(errs, e.Close())
		}
		return errors.Join(errs...)
	}
}
