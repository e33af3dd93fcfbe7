package forecast

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// LargestBatch returns the largest batch with which a training fits in limit bytes of a dry device,
// and its forecast. program makes the training with a batch of that many examples. Each batch is
// tried on a device of limit bytes: the returned batch fits, and one more example does not. The
// search assumes that no batch fits above one that does not. If not even a batch of 1 fits, it
// returns 0 and the forecast of a batch of 1, with Advice.
func LargestBatch(ctx context.Context, name string, limit int64, program func(batch int) Program, options ...tensor.Option) (int, *Forecast, error) {
	if program == nil || ctx == nil {
		return 0, nil, fmt.Errorf("forecast: LargestBatch: %w: the program or the context is nil", device.ErrInvalid)
	}
	limited, err := withCapacity(name, limit)
	if err != nil {
		return 0, nil, err
	}
	var best *Forecast
	n, err := search(1, maxBatch, func(batch int64) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("forecast: LargestBatch: %w", err)
		}
		f, err := trial{name: limited, program: program(int(batch)), options: options}.run(ctx)
		if errors.Is(err, memcache.ErrOutOfMemory) {
			return false, nil
		}
		if err == nil {
			best = f
		}
		return true, err
	})
	if err != nil {
		return 0, nil, err
	}
	if n == 0 {
		best, err = Step(ctx, limited, program(1), options...)
	}
	return int(n), best, err
}

// maxBatch ends the search for a program that needs no more memory with a larger batch.
const maxBatch = 1 << 30

// search returns the largest number from least to most that fits, or least-1. It doubles the number
// while that fits, and then bisects.
func search(least, most int64, fits func(int64) (bool, error)) (int64, error) {
	good, bad := least-1, most+1
	for bad-good > 1 {
		n := min(max(2*good, good+1), good+(bad-good)/2)
		if bad <= most {
			n = good + (bad-good)/2
		}
		ok, err := fits(n)
		switch {
		case err != nil:
			return 0, err
		case ok:
			good = n
		default:
			bad = n
		}
	}
	return good, nil
}

// SmallestLimit returns the smallest memory of a dry device, in steps of 2 MiB, in which a training
// fits, and its forecast there. It is at most the ReservedPeak on a device without limit, rounded
// up to a step, and less if the cache can free cached memory for other requests.
func SmallestLimit(ctx context.Context, name string, program Program, options ...tensor.Option) (int64, *Forecast, error) {
	unlimited, err := withCapacity(name, maxCapacity)
	if err != nil {
		return 0, nil, err
	}
	best, err := trial{name: unlimited, program: program, options: options}.run(ctx)
	if err != nil {
		return 0, nil, err
	}
	const unit = sizes.SmallSegment
	most := (best.ReservedPeak + unit - 1) / unit
	saved, err := search(0, most-1, func(n int64) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("forecast: SmallestLimit: %w", err)
		}
		limited, err := withCapacity(name, (most-n)*unit)
		if err != nil {
			return false, err
		}
		f, err := trial{name: limited, program: program, options: options}.run(ctx)
		if errors.Is(err, memcache.ErrOutOfMemory) {
			return false, nil
		}
		if err == nil {
			best = f
		}
		return true, err
	})
	return (most - saved) * unit, best, err
}
