package tensor

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	_ "github.com/cistern-ml/cistern/device/host" // so that Open("host") works in every program
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Open creates a runtime and everything below it: it opens the device of that name, with the
// options of [device.Open] ("host", "host?capacity=2GiB", "cuda:0"), and creates a cache, a pool of
// pinned memory and a stream for it.
//
//	env, err := tensor.Open("host")
//	defer env.Close()
//
// The runtime owns all of these, and [Runtime.Close] closes them. Every program has the device
// "host". The package of another backend must be imported for its side effect; otherwise the error
// wraps [device.ErrNoBackend] and names the package. After an error nothing stays open.
func Open(name string, options ...Option) (*Runtime, error) {
	cfg := newConfig(options)
	own := new(owned)
	rt, err := own.open(name, cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tensor: Open: %w", err), own.close())
	}
	rt.own = own
	return rt, nil
}

// owned holds the functions that close what Open made, in the order of creation.
type owned struct {
	closers []func() error
}

func (o *owned) open(name string, cfg config) (*Runtime, error) {
	dev, err := device.Open(name)
	if err != nil {
		return nil, err
	}
	o.onClose(dev.Close)
	cache, err := memcache.New(dev, cfg.cache)
	if err != nil {
		return nil, err
	}
	o.onClose(cache.Close)
	stream, err := dev.NewStream(cfg.stream)
	if err != nil {
		return nil, err
	}
	o.onClose(stream.Close)
	pool, err := transfer.New(dev, cfg.pool)
	if err != nil {
		return nil, err
	}
	o.onClose(pool.Close)
	return newRuntime(cache, pool, stream, cfg)
}

func (o *owned) onClose(f func() error) { o.closers = append(o.closers, f) }

// close closes everything in reverse order: the pool first, whose copies run on the stream, then
// the stream, whose work uses the cache's memory, and the device last. It continues after an error.
func (o *owned) close() error {
	if o == nil {
		return nil
	}
	var errs []error
	for i := len(o.closers) - 1; i >= 0; i-- {
		errs = append(errs, o.closers[i]())
	}
	return errors.Join(errs...)
}
