package transfer_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/transfer"
)

// Memory of a copy with an unknown end is never reused.
func TestCopyWithoutAnEnd(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 64, r.a)
	for range 3 {
		b := r.get(t, 64)
		_, err := r.pool.H2D(t.Context(), cisterntest.Unrecordable{Stream: r.a}, block, 0, b, 0, 64)
		require.ErrorIs(t, err, cisterntest.ErrRefused)
		require.ErrorIs(t, b.Check(), transfer.ErrInFlight)
		require.Nil(t, b.Bytes())
		require.ErrorIs(t, b.Wait(t.Context()), transfer.ErrInFlight)
		_, err = r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 64)
		require.ErrorIs(t, err, transfer.ErrInFlight)
		require.NoError(t, b.Release())
	}
	st := r.pool.Stats()
	require.EqualValues(t, 3, st.Misses)
	require.EqualValues(t, 3, st.HostFrees)
	require.NoError(t, block.Free())
}

// untimed is a device without timed events.
type untimed struct{ device.Device }

func (d untimed) NewEvent(o device.EventOptions) (device.Event, error) {
	if o.Timed {
		return nil, cisterntest.ErrRefused
	}
	return d.Device.NewEvent(o)
}

// timeless is a stream that refuses to record timed events.
type timeless struct{ device.Stream }

func (s timeless) Record(e device.Event) error {
	if e.Timed() {
		return cisterntest.ErrRefused
	}
	return s.Stream.Record(e)
}

// A copy that can't be measured still runs.
func TestObserverWithoutTimes(t *testing.T) {
	for _, lacks := range []string{"events", "records"} {
		t.Run(lacks, func(t *testing.T) {
			rec := &stacktest.Recorder{}
			r := newRig(t, transfer.Config{})
			dev, s := r.dev, r.a
			if lacks == "events" {
				dev = untimed{r.dev}
			} else {
				s = timeless{r.a}
			}
			p, err := transfer.New(dev, transfer.Config{Observer: rec})
			require.NoError(t, err)
			block := r.alloc(t, 64, r.a)
			buf, err := p.Get(t.Context(), 64)
			require.NoError(t, err)
			c, err := p.H2D(t.Context(), s, block, 0, buf, 0, 64)
			require.NoError(t, err)
			require.NoError(t, c.Wait(t.Context()))
			require.NoError(t, errors.Join(buf.Release(), block.Free(), p.Close()))
			require.Len(t, rec.Of(transfer.OpH2D), 1)
			e := rec.Of(transfer.OpH2D)[0]
			require.NoError(t, e.Err)
			require.Zero(t, e.Busy)
		})
	}
}
