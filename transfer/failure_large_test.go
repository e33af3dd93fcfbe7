package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

const (
	largeBytes = 5<<20 + 7
	chunkBytes = 2 << 20
)

// large is a block of three chunks, and a pool that may hold the two buffers of one goroutine.
type large struct {
	*trialPool
	pool  *transfer.Pool
	block memcache.Block
	mem   []byte // the block's
}

func newLarge(t testing.TB, m *trialPool) *large {
	l := &large{trialPool: m}
	var err error
	l.pool, err = transfer.New(m.dev, transfer.Config{MaxBytes: 2 * chunkBytes})
	require.NoError(t, err)
	l.block, err = m.cache.Alloc(context.Background(), largeBytes, m.stream)
	require.NoError(t, err)
	l.mem, err = m.dev.(device.HostVisible).Bytes(l.block.Ptr(), largeBytes)
	require.NoError(t, err)
	fill(l.mem, 1)
	return l
}

func (l *large) close() error {
	err := l.stream.Synchronize(context.Background())
	if n := l.pool.Stats().ActiveBytes.Current; n != 0 {
		err = errors.Join(err, fmt.Errorf("%d pinned bytes are out", n))
	}
	return errors.Join(err, l.block.Free(), l.pool.Close())
}

// sees returns the block's bytes after all work of the stream.
func (l *large) sees() any {
	return append([]byte(errText(l.stream.Synchronize(context.Background()))), l.mem...)
}

// inChunks requires each chunk to be unchanged or equal to src's.
func (l *large) inChunks(src []byte) func(before any, err error) error {
	return func(before any, err error) error {
		was, now := before.([]byte), l.sees().([]byte)
		for at := 0; at < largeBytes; at += chunkBytes {
			end := min(at+chunkBytes, largeBytes)
			if !bytes.Equal(now[at:end], was[at:end]) && !bytes.Equal(now[at:end], src[at:end]) {
				return fmt.Errorf("a part of the chunk at %d is written: %w", at, err)
			}
		}
		return nil
	}
}

const onTheWay = "an error on the way leaves a part of dst written"

var largeCopies = []failtest.Row[*trialPool]{
	{
		Of: "Pool.Upload", Ends: queued,
		Partly: map[failtest.Kind]string{failtest.Failed: onTheWay, failtest.OutOfMemory: onTheWay, failtest.Ended: onTheWay},
		Make: func(t testing.TB, m *trialPool) failtest.Trial {
			l := newLarge(t, m)
			src := fill(make([]byte, largeBytes), 2)
			return failtest.Trial{
				Do: func(ctx context.Context) error {
					_, err := l.pool.Upload(ctx, m.stream, l.block, 0, src)
					return err
				},
				See: l.sees, Left: l.inChunks(src), Undo: l.close,
			}
		},
	},
	{Of: "Pool.Download", Ends: queued, Make: func(t testing.TB, m *trialPool) failtest.Trial {
		l := newLarge(t, m)
		got := make([]byte, largeBytes)
		return failtest.Trial{
			Do:   func(ctx context.Context) error { return l.pool.Download(ctx, m.stream, got, l.block, 0) },
			See:  func() any { return bytes.Clone(got) },
			Undo: l.close,
		}
	}},
}
