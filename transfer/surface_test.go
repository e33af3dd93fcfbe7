package transfer_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// surfaceOf lists all of the package's functions with valid arguments.
func surfaceOf(t *testing.T) *surface.Surface {
	r := newRig(t, transfer.Config{MaxBytes: 64 << 20})
	block := r.alloc(t, 4096, r.a)
	t.Cleanup(func() { block.Free() })
	buffer := r.get(t, 4096)
	t.Cleanup(func() { buffer.Release() })
	batch := r.pool.NewBatch()
	t.Cleanup(func() { batch.Close() })
	return &surface.Surface{
		T: t,
		Functions: map[string]any{
			"As": transfer.As[int32], "Bytes": transfer.Bytes[int32], "CopyPeer": transfer.CopyPeer, "GetWords": transfer.GetWords[uint32], "New": transfer.New,
			"Observers": transfer.Observers, "PutWords": transfer.PutWords[uint32], "UploadWords": transfer.UploadWords[uint32], "View": transfer.View[int32],
			"AheadOf": transfer.AheadOf, "WithAhead": transfer.WithAhead, "WithoutMeter": transfer.WithoutMeter,
		},
		Receivers: map[string]func() any{
			"Ahead": func() any {
				_, a := transfer.WithAhead(t.Context())
				return a
			},
			"Batch": func() any {
				b := r.pool.NewBatch()
				t.Cleanup(func() { b.Close() })
				return b
			},
			"Buffer":       func() any { return buffer },
			"Copy":         func() any { return new(transfer.Copy) },
			"DurationStat": func() any { return transfer.DurationStat{} },
			"LimitError":   func() any { return &transfer.LimitError{} },
			"Meter": func() any {
				_, m := r.pool.Meter(t.Context())
				return m
			},
			"Op":    func() any { return transfer.OpH2D },
			"Pool":  func() any { return r.pool },
			"Rows":  func() any { return transfer.Rows{} },
			"Stats": func() any { return transfer.Stats{} },
		},
		Without: map[string]string{
			"Buffer.Release": "it would end the buffer of the other calls", "Pool.Close": "it would end the pool",
		},
		Valid: func(typ reflect.Type) any {
			switch typ {
			case reflect.TypeFor[context.Context]():
				return t.Context()
			case reflect.TypeFor[device.Device]():
				return r.dev
			case reflect.TypeFor[device.Stream]():
				return r.a
			case reflect.TypeFor[memcache.Block]():
				return block
			case reflect.TypeFor[transfer.Buffer]():
				return buffer
			case reflect.TypeFor[transfer.BufferUse]():
				return transfer.BufferUse{Buffer: buffer}
			case reflect.TypeFor[*transfer.Batch]():
				return batch
			case reflect.TypeFor[*[]byte]():
				return new([]byte)
			case reflect.TypeFor[*[][]byte]():
				return new([][]byte)
			case reflect.TypeFor[transfer.Side]():
				return transfer.Side{Pool: r.pool, Block: block, Stream: r.a}
			case reflect.TypeFor[[]uint32](), reflect.TypeFor[[]byte]():
				return reflect.MakeSlice(typ, 8, 8).Interface()
			case reflect.TypeFor[*device.Launch]():
				return &device.Launch{Func: func() {}}
			}
			return nil
		},
		Allowed: map[string]string{
			"transfer.Observer": "nothing is observed",
		},
		Done: func(call string, result any) {
			switch v := result.(type) {
			case *transfer.Pool:
				require.NoError(t, v.Close())
			case transfer.Buffer:
				require.NoError(t, v.Release())
			}
		},
	}
}

// Nothing panics on a nil argument.
func TestNilArguments(t *testing.T) { surfaceOf(t).Nil() }

// Sizes near the limits of their types are errors: no sum overflows and nothing is allocated.
func TestExtremeArguments(t *testing.T) { surfaceOf(t).Extreme(1, 500, 256<<20) }

// The printed text is short and true, and printing does not race with changes of the value.
func TestFormat(t *testing.T) {
	s := surfaceOf(t)
	pool := s.Receivers["Pool"]().(*transfer.Pool)
	s.Format(map[string]string{}, func() {
		if b, err := pool.Get(t.Context(), 100); err == nil {
			_ = b.Release()
		}
		b := pool.NewBatch()
		_ = b.Close()
	})
}
