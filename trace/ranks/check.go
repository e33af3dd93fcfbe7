package ranks

import (
	"errors"
	"fmt"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/trace"
)

// ErrInvalid is the class of errors about profiles that a profiler can't have written, for
// errors.Is. It is [device.ErrInvalid].
var ErrInvalid = device.ErrInvalid

// most is the largest number of bytes or nanoseconds in a profile, so that sums of thousands of
// profiles don't overflow.
const most = 1 << 50

// check returns an error about figures that no training can have.
func check(p *trace.StepProfile) error {
	switch {
	case p.WorldSize == 0:
		return errors.New("the profile names no rank; set ProfilerConfig.Communicator or trace.Config.WorldSize")
	case p.WorldSize < 0 || p.WorldSize > mostRanks || p.Rank < 0 || p.Rank >= p.WorldSize:
		return fmt.Errorf("rank %d of %d: want a rank from 0 to the size less one, and a size of at most %d", p.Rank, p.WorldSize, mostRanks)
	}
	if p.TraceID != "" {
		if _, err := oteltrace.TraceIDFromHex(p.TraceID); err != nil {
			return fmt.Errorf("trace_id %.40q: want 32 hex digits, in lower case: %w", p.TraceID, err)
		}
	}
	if err := checkFigures(int64(p.HostTime), int64(p.DeviceTime), p.AllocatedPeak, p.ReservedPeak); err != nil {
		return err
	}
	for _, x := range p.Collectives {
		if err := checkFigures(x.Number, x.Bytes, int64(x.Time)); err != nil {
			return err
		}
	}
	for _, x := range p.ReplayedCollectives {
		if err := checkFigures(x.Count, x.Bytes); err != nil {
			return err
		}
	}
	if p.Peak != nil {
		for _, s := range p.Peak.Categories {
			if err := checkFigures(s.Bytes); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkFigures(figures ...int64) error {
	for _, f := range figures {
		if f < 0 || f > most {
			return fmt.Errorf("a figure of %d: want 0 to %d", f, int64(most))
		}
	}
	return nil
}
