package transfer_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// trialSide is a pool over a device whose calls may fail, with a block of it.
type trialSide struct {
	dev    device.Device
	cache  *memcache.Cache
	pool   *transfer.Pool
	stream device.Stream
	block  memcache.Block
}

// trialPool is two trialSides, and a buffer of the first.
type trialPool struct {
	trialSide
	peer   trialSide
	buffer transfer.Buffer
	text   []byte // that a program registers
	lost   bool   // pinned memory that the driver did not take back
}

func newFailingSide(t testing.TB, f *failtest.Faults) (m trialSide) {
	t.Helper()
	var err error
	m.dev, err = failtest.NewHost(f, host.Config{Capacity: 32 << 20})
	require.NoError(t, err)
	m.cache, err = memcache.New(m.dev, memcache.Config{})
	require.NoError(t, err)
	m.pool, err = transfer.New(m.dev, transfer.Config{})
	require.NoError(t, err)
	m.stream, err = m.dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	m.block, err = m.cache.Alloc(context.Background(), 64, m.stream)
	require.NoError(t, err)
	m.set(t, "the block's bytes before anything is copied; they have 64 bytes.")
	return m
}

// set writes the block's first bytes.
func (m *trialSide) set(t testing.TB, text string) {
	t.Helper()
	mem, err := m.dev.(device.HostVisible).Bytes(m.block.Ptr(), 64)
	require.NoError(t, err)
	copy(mem, text)
}

// bytes returns the block's bytes after all work of the stream.
func (m *trialSide) bytes() string {
	mem, err := m.dev.(device.HostVisible).Bytes(m.block.Ptr(), 64)
	return string(mem) + errText(errors.Join(m.stream.Synchronize(context.Background()), err))
}

func errText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

func (m *trialSide) close(t testing.TB, lost bool) {
	assert.NoError(t, m.block.Free())
	assert.NoError(t, m.pool.Close())
	assert.NoError(t, m.stream.Close())
	assert.NoError(t, m.cache.Close())
	if lost {
		leaktest.Excuse(m.dev)
	}
	assert.Equal(t, lost, m.dev.Close() != nil, "the device says what it has not got back")
}

func openFailing(t testing.TB, f *failtest.Faults) *trialPool {
	t.Helper()
	m := &trialPool{trialSide: newFailingSide(t, f), peer: newFailingSide(t, f), text: []byte("a table that stays, of 32 bytes.")}
	var err error
	m.buffer, err = m.pool.Get(context.Background(), 64)
	require.NoError(t, err)
	_, err = m.buffer.WriteAt([]byte("what the buffer has, of which a copy takes some: 64 bytes of it."), 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, m.buffer.Release())
		m.peer.close(t, false)
		m.close(t, m.lost)
	})
	return m
}

// live returns the buffers that are out of the pools after all copies, and the caches' blocks.
func (m *trialPool) live() any {
	err := errors.Join(m.stream.Synchronize(context.Background()), m.peer.stream.Synchronize(context.Background()))
	s := m.pool.Stats()
	return []any{err, s.ActiveBytes.Current, s.Pending, m.cache.MemoryAllocated(), m.peer.cache.MemoryAllocated()}
}

// sees returns the bytes of both blocks and of the buffer.
func (m *trialPool) sees() any {
	b := make([]byte, 64)
	err := m.buffer.Wait(context.Background())
	if err == nil {
		_, err = m.buffer.ReadAt(b, 0)
	}
	return m.bytes() + m.peer.bytes() + string(b) + errText(err) + string(m.text)
}

// queues returns a trial of queued work: See waits for it.
func (m *trialPool) queues(work func(ctx context.Context) (*transfer.Copy, error)) failtest.Trial {
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			_, err := work(ctx)
			return err
		},
		See: m.sees,
	}
}

var rows = transfer.Rows{Width: 4, Height: 3, DstPitch: 8, SrcPitch: 6}

// queued is the reason why work may have run although Record failed: the driver has it already.
var queued = map[string]string{"Record": "the work is queued, and nothing says when it ends: the buffer has to be released"}

// failureRows are programs of the pool's operations.
var failureRows = []failtest.Row[*trialPool]{
	{Of: "New", Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		var pool *transfer.Pool
		return failtest.Trial{
			Do: func(context.Context) (err error) {
				pool, err = transfer.New(m.dev, transfer.Config{})
				return err
			},
			Undo: func() error { return pool.Close() },
		}
	}},
	{Of: "Pool.Get Buffer.Release Buffer.WriteAt Buffer.ReadAt Buffer.Zero", Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		var got string
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				b, err := m.pool.Get(ctx, 100<<10)
				if err != nil {
					return err
				}
				text := []byte("text")
				_, werr := b.WriteAt(text, 10)
				zerr := b.Zero(11, 1)
				_, rerr := b.ReadAt(text, 10)
				got = string(text)
				return errors.Join(werr, zerr, rerr, b.Release())
			},
			See: func() any { return got },
		}
	}},
	{Of: "Pool.EmptyCache", Ends: map[string]string{"FreePinned": "the memory is the driver's, and not freed again"}, Make: func(t testing.TB, m *trialPool) failtest.Trial {
		b, err := m.pool.Get(context.Background(), 100<<10)
		require.NoError(t, err)
		require.NoError(t, b.Release())
		return failtest.Trial{Do: func(ctx context.Context) error {
			err := m.pool.EmptyCache(ctx)
			m.lost = errors.Is(err, failtest.ErrFailed) // it is not freed again, because its state is unknown
			return err
		}}
	}},
	{Of: "Pool.Register", Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		var b transfer.Buffer
		return failtest.Trial{
			Do: func(ctx context.Context) error {
				got, err := m.pool.Register(ctx, m.text)
				if err == nil {
					b = got
				}
				return err
			},
			Undo: func() error { return b.Release() },
		}
	}},
	{Of: "Pool.H2D", Ends: queued, Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return m.pool.H2D(ctx, m.stream, m.block, 3, m.buffer, 5, 20)
		})
	}},
	{Of: "Pool.H2DStrided", Ends: queued, Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return m.pool.H2DStrided(ctx, m.stream, m.block, 3, m.buffer, 5, rows)
		})
	}},
	{Of: "Pool.D2H", Ends: queued, Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return m.pool.D2H(ctx, m.stream, m.buffer, 5, m.block, 3, 20)
		})
	}},
	{Of: "Pool.D2HStrided", Ends: queued, Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return m.pool.D2HStrided(ctx, m.stream, m.buffer, 5, m.block, 3, rows)
		})
	}},
	{Of: "Pool.D2D", Ends: queued, Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return m.pool.D2D(ctx, m.stream, m.block, 40, m.block, 3, 20)
		})
	}},
	{Of: "Pool.D2DStrided", Ends: queued, Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return m.pool.D2DStrided(ctx, m.stream, m.block, 40, m.block, 3, rows)
		})
	}},
	{Of: "Pool.Fill", Ends: queued, Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return m.pool.Fill(ctx, m.stream, m.block, 3, 20, 'x')
		})
	}},
	{Of: "Pool.Upload", Ends: queued, Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return m.pool.Upload(ctx, m.stream, m.block, 3, m.text[:20])
		})
	}},
	{Of: "Pool.Launch", Ends: queued, Make: func(t testing.TB, m *trialPool) failtest.Trial {
		mem, err := m.dev.(device.HostVisible).Bytes(m.block.Ptr(), 64)
		require.NoError(t, err)
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return m.pool.Launch(ctx, m.stream, &device.Launch{Name: "mark", Writes: []device.Range{m.block.Range(0, 64)}, Func: func() { mem[7] = '7' }},
				transfer.BufferUse{Buffer: m.buffer})
		})
	}},
	{Of: "CopyPeer", Ends: queued, Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		return m.queues(func(ctx context.Context) (*transfer.Copy, error) {
			return transfer.CopyPeer(ctx, transfer.Side{Pool: m.peer.pool, Stream: m.peer.stream, Block: m.peer.block, Offset: 2},
				transfer.Side{Pool: m.pool, Stream: m.stream, Block: m.block, Offset: 4}, 30)
		})
	}},
	{Of: "Pool.Download", Make: func(_ testing.TB, m *trialPool) failtest.Trial {
		got := make([]byte, 20)
		return failtest.Trial{
			Do:  func(ctx context.Context) error { return m.pool.Download(ctx, m.stream, got, m.block, 3) },
			See: func() any { return string(got) },
		}
	}},
	{Of: "Copy.Wait Copy.Err", Make: func(t testing.TB, m *trialPool) failtest.Trial {
		c, err := m.pool.Fill(context.Background(), m.stream, m.block, 3, 20, 'x')
		require.NoError(t, err)
		return failtest.Trial{Do: func(ctx context.Context) error { return errors.Join(c.Wait(ctx), c.Err()) }}
	}},
	{Of: "Buffer.Wait", Make: func(t testing.TB, m *trialPool) failtest.Trial {
		_, err := m.pool.D2H(context.Background(), m.stream, m.buffer, 5, m.block, 3, 20)
		require.NoError(t, err)
		return failtest.Trial{Do: m.buffer.Wait}
	}},
}

// batch queues uploads, a kernel and outputs of the block in one batch.
func (m *trialPool) batch(ctx context.Context) (_ *transfer.Batch, err error) {
	b := m.pool.NewBatch()
	err = errors.Join(
		b.Upload(ctx, m.block, 0, []byte("uploaded")),
		b.UploadPadded(ctx, m.block, 16, []byte("padded"), 8),
		transfer.UploadWords(ctx, b, m.block, 24, []uint32{0x64726f77}, 4),
		b.Launch(&device.Launch{Name: "nothing", Writes: []device.Range{m.block.Range(0, 64)}, Func: func() {}}, m.block))
	if err == nil {
		_, err = b.Output(ctx, m.block, 2, 10)
	}
	if err == nil {
		_, err = b.OutputPadded(ctx, m.block, 14, 6, 8)
	}
	if err == nil {
		_, err = b.Submit(ctx, m.stream)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// collects returns a trial of reading a batch's outputs.
func (m *trialPool) collects(t testing.TB, collect func(ctx context.Context, b *transfer.Batch, out *[][]byte) error) failtest.Trial {
	b, err := m.batch(context.Background())
	require.NoError(t, err)
	out := [][]byte{make([]byte, 10), make([]byte, 6)}
	return failtest.Trial{
		Do:   func(ctx context.Context) error { return collect(ctx, b, &out) },
		See:  func() any { return string(out[0]) + string(out[1]) },
		Undo: b.Close,
	}
}

var batchRows = []failtest.Row[*trialPool]{
	{
		Of: "Batch.Upload Batch.UploadPadded UploadWords Batch.Launch Batch.Output Batch.OutputPadded Batch.Submit Batch.Close",
		Ends: map[string]string{
			"Record": queued["Record"], "Launch": "the uploads are queued", "CopyD2HBatch": "the uploads and the kernel are queued",
		},
		Make: func(_ testing.TB, m *trialPool) failtest.Trial {
			var b *transfer.Batch
			return failtest.Trial{
				Do: func(ctx context.Context) error {
					made, err := m.batch(ctx)
					if err == nil {
						b = made
					}
					return err
				},
				See: m.sees,
				Undo: func() error {
					if b == nil {
						return nil
					}
					return b.Close()
				},
			}
		},
	},
	{Of: "Batch.Collect", Make: func(t testing.TB, m *trialPool) failtest.Trial {
		return m.collects(t, func(ctx context.Context, b *transfer.Batch, out *[][]byte) error { return b.Collect(ctx, out) })
	}},
	{Of: "Batch.CollectInto", Make: func(t testing.TB, m *trialPool) failtest.Trial {
		return m.collects(t, func(ctx context.Context, b *transfer.Batch, out *[][]byte) error { return b.CollectInto(ctx, *out) })
	}},
	{Of: "Batch.CollectOne", Make: func(t testing.TB, m *trialPool) failtest.Trial {
		return m.collects(t, func(ctx context.Context, b *transfer.Batch, out *[][]byte) error {
			return b.CollectOne(ctx, 1, &(*out)[1])
		})
	}},
	{Of: "Batch.CollectRange", Make: func(t testing.TB, m *trialPool) failtest.Trial {
		return m.collects(t, func(ctx context.Context, b *transfer.Batch, out *[][]byte) error {
			return b.CollectRange(ctx, 0, 1, 5, &(*out)[0])
		})
	}},
}

// TestEveryFailure: whichever driver call or check of a context fails, an operation of a pool has
// done everything or nothing, and succeeds afterwards.
func TestEveryFailure(t *testing.T) {
	failtest.Suite[*trialPool]{Open: openFailing, Live: func(m *trialPool) any { return m.live() },
		Rows: slices.Concat(failureRows, batchRows, largeCopies)}.Run(t)
}

// TestCloseThatFails: Close frees all pinned memory except that of the failed call, and returns its
// error.
func TestCloseThatFails(t *testing.T) {
	for k := 1; ; k++ {
		f := new(failtest.Faults)
		dev, err := failtest.NewHost(f, host.Config{Capacity: 32 << 20})
		require.NoError(t, err)
		pool, err := transfer.New(dev, transfer.Config{})
		require.NoError(t, err)
		for _, bytes := range []int64{64, 100 << 10, 3 << 20} {
			b, err := pool.Get(context.Background(), bytes)
			require.NoError(t, err)
			require.NoError(t, b.Release())
		}
		f.Arm(failtest.Failed, k)
		err = pool.Close()
		failed, calls := f.Disarm()
		if failed == "" {
			require.NoError(t, err)
			require.NoError(t, dev.Close())
			require.Equal(t, 3, calls[failtest.Failed])
			return
		}
		require.ErrorIs(t, err, failtest.ErrFailed, failed)
		require.Equal(t, err, pool.Close(), "a second time")
		leaktest.Excuse(dev)
		require.ErrorContains(t, dev.Close(), "1 pinned buffers")
	}
}
