package loader_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// streamList is a device that lists the streams that it made.
type streamList struct {
	device.Device
	made []device.Stream
}

func (d *streamList) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	d.made = append(d.made, s)
	return s, err
}

func TestLoaderClosesItsOwnStream(t *testing.T) {
	r := newRig(t, transfer.Config{})
	dev := &streamList{Device: r.dev}
	pool, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	l, err := loader.New(t.Context(), pool, loader.Config{Cache: r.cache, Compute: r.a, Fields: []int64{10}})
	require.NoError(t, err)
	require.Len(t, dev.made, 1)
	require.False(t, dev.made[0].Closed())
	require.NoError(t, l.Close())
	require.True(t, dev.made[0].Closed())
	l, err = loader.New(t.Context(), pool, loader.Config{Cache: r.cache, Compute: r.a, Copy: r.b, Fields: []int64{10}})
	require.NoError(t, err)
	require.Len(t, dev.made, 1)
	require.NoError(t, l.Close())
	require.False(t, r.b.Closed(), "it was given")
	require.NoError(t, pool.Close())
}
