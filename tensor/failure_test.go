package tensor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/transfer"
)

// trialRig is a rig whose driver calls may fail, with the objects of one trial.
type trialRig struct {
	*rig
	pool   *transfer.Pool
	faults *failtest.Faults
	dtype  Dtype // of operands
	life   *Lifetime
	n      int // operands
}

type trialRow = failtest.Row[*trialRig]

// plain is a backend without fusions, which therefore run as several operations.
type plain struct{ backend.Backend }

func (plain) Supports(*backend.Call) bool { return false }

// openTrial opens a device with a cache of this configuration, for operands of this dtype.
func openTrial(cfg memcache.Config, dtype Dtype) func(t testing.TB, f *failtest.Faults) *trialRig {
	return func(t testing.TB, f *failtest.Faults) *trialRig {
		t.Helper()
		if cfg.NoCaching {
			f.Spare("Free") // the cache keeps memory that the driver does not free
		}
		dev, err := failtest.NewHost(f, host.Config{Capacity: 64 << 20})
		require.NoError(t, err)
		leaktest.Device(t, dev)
		s := stacktest.New(t, stacktest.Config{Device: dev, Cache: cfg})
		rt, err := NewRuntime(s.Cache, s.Pool, s.Stream)
		require.NoError(t, err)
		rt.gc.last = time.Now() // no trial drops tensors, and a collection is slow
		ctx, life := WithLifetime(context.Background())
		t.Cleanup(func() { assert.NoError(t, errors.Join(life.Close(), rt.Close())) })
		return &trialRig{rig: &rig{Runtime: rt, t: t, ctx: ctx, dev: dev, cache: s.Cache}, pool: s.Pool, faults: f, dtype: dtype, life: life}
	}
}

// live returns the tensors, the memory and the pinned memory in use after all queued work, without
// memory that the runtime keeps.
func (m *trialRig) live() any {
	if err := errors.Join(m.dev.Synchronize(m.ctx), m.cache.PollFrees(), m.pool.EmptyCache(m.ctx), m.parked.take()); err != nil {
		return err
	}
	tensors, bytes := m.Live()
	p := m.pool.Stats()
	return [6]int64{int64(tensors), bytes, m.allocated(), p.ActiveRequests.Current, p.ActiveBytes.Current, p.HeldBytes.Current}
}

func (m *trialRig) allocated() int64 {
	n := m.cache.MemoryAllocated()
	if w := m.Runtime.faults.word; w != nil {
		n -= w.block.Size()
	}
	return n
}

// sight is what a caller can observe: the live tensors, the newest first, and the memory that they
// use.
type sight struct {
	Tensors   []string
	Allocated int64
}

func (m *trialRig) see() any { return m.look(nil) }

// look is see without the elements of some tensors.
func (m *trialRig) look(without []*Tensor) sight {
	m.t.Helper()
	require.NoError(m.t, m.dev.Synchronize(m.ctx))
	s := sight{Allocated: m.allocated()}
	unseen := map[*handle]bool{}
	for _, t := range without {
		unseen[t.handle] = true
	}
	for _, h := range m.Runtime.live.all(func(*handle) bool { return true }) {
		text := fmt.Sprint(h.dtype, h.shape, h.store.label(), h.store.away.Load() != nil)
		if !unseen[h] {
			text += " " + digest(m.bytes(h))
		}
		s.Tensors = append(s.Tensors, text)
	}
	return s
}

// digest returns bytes as text, shortened if there are many.
func digest(b []byte) string {
	if len(b) > 100 {
		return fmt.Sprintf("%x", sha256.Sum256(b))
	}
	return fmt.Sprintf("%x", b)
}

// bytes returns the bytes of a tensor's storage, on the device or offloaded.
func (m *trialRig) bytes(h *handle) []byte {
	m.t.Helper()
	if a := h.store.away.Load(); a != nil {
		b := a.buffer.Bytes()
		require.NotNil(m.t, b, "the bytes of an offloaded tensor")
		return b[:h.store.bytes]
	}
	if h.bytes == 0 {
		return nil
	}
	b, err := m.visible.Bytes(h.store.block.Ptr(), h.store.bytes)
	require.NoError(m.t, err)
	return b
}

// in returns an operand, which the end of the trial releases.
func (m *trialRig) in(shape ...int) *Tensor { return m.inOf(m.dtype, shape...) }

// wide returns an operand of the dtype that losses and statistics of the operands have.
func (m *trialRig) wide(shape ...int) *Tensor { return m.inOf(m.dtype.Computes(), shape...) }

func (m *trialRig) inOf(dtype Dtype, shape ...int) *Tensor {
	m.t.Helper()
	m.n++
	data := make([]float32, elements(shape))
	for i := range data {
		data[i] = float32((i*37+m.n*11)%23-11) / 8
	}
	x := put(m.rig, data, shape...)
	if dtype == Float32 {
		return x
	}
	y, err := m.Convert(m.ctx, x, dtype)
	require.NoError(m.t, errors.Join(err, x.Release()))
	return y
}

// index returns an operand of whole numbers less than below.
func (m *trialRig) index(below int, shape ...int) *Tensor {
	m.t.Helper()
	data := make([]int32, elements(shape))
	for i := range data {
		data[i] = int32(i * 5 % below)
	}
	return put(m.rig, data, shape...)
}

// pack returns the tensors among the results of an operation, and its error.
func pack(results ...any) (ts []*Tensor, err error) {
	for _, r := range results {
		switch r := r.(type) {
		case *Tensor:
			if r != nil {
				ts = append(ts, r)
			}
		case error:
			err = r
		}
	}
	return ts, err
}

// yields is a trial of an operation that returns tensors.
func (m *trialRig) yields(do func(ctx context.Context) ([]*Tensor, error)) failtest.Trial {
	var made []*Tensor
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			got, err := do(ctx)
			if err != nil && len(got) > 0 {
				return fmt.Errorf("%d tensors beside %w", len(got), err)
			}
			made = got
			return err
		},
		See:  m.see,
		Undo: func() error { return errors.Join(releaseAll(m.ctx, made...), m.life.Close()) },
	}
}

// does is a trial of an operation that returns no tensor.
func (m *trialRig) does(do func(ctx context.Context) error) failtest.Trial {
	return m.yields(func(ctx context.Context) ([]*Tensor, error) { return nil, do(ctx) })
}

// undefining is a trial of an operation whose failure leaves some elements undefined.
func (m *trialRig) undefining(ts []*Tensor, trial failtest.Trial) failtest.Trial {
	was := m.look(ts)
	trial.Left = func(_ any, err error) error {
		if now := m.look(ts); !assert.ObjectsAreEqual(was, now) {
			return fmt.Errorf("%w has left %v, of %v", err, now, was)
		}
		return nil
	}
	return trial
}

// partly is a trial of an operation in place that may have run for some of ts and not for others.
func (m *trialRig) partly(ts []*Tensor, do op) failtest.Trial {
	m.t.Helper()
	before := m.contents(ts)
	made, err := do(m.ctx)
	require.NoError(m.t, errors.Join(err, releaseAll(m.ctx, made...)))
	after := m.contents(ts)
	for i, t := range ts {
		copy(m.bytes(t.handle), before[i])
	}
	trial := m.undefining(ts, m.yields(do))
	left := trial.Left
	trial.Left = func(was any, err error) error {
		for i, now := range m.contents(ts) {
			if now != before[i] && now != after[i] {
				return fmt.Errorf("%w: %v is %s: want %s as before, or %s", err, ts[i], digest([]byte(now)), digest([]byte(before[i])), digest([]byte(after[i])))
			}
		}
		return left(was, err)
	}
	return trial
}

// contents returns the bytes of tensors that are not views.
func (m *trialRig) contents(ts []*Tensor) (all []string) {
	m.t.Helper()
	require.NoError(m.t, m.dev.Synchronize(m.ctx))
	for _, t := range ts {
		all = append(all, string(m.bytes(t.handle)))
	}
	return all
}

// launched and unallocated are reasons why a failure may leave a part of the work done.
var (
	launched    = map[failtest.Kind]string{failtest.Failed: refused}
	unallocated = map[failtest.Kind]string{failtest.Failed: refused, failtest.OutOfMemory: "the launch before has taken less scratch memory"}
)

const refused = "a device that refuses a launch has done the ones before"

// TestEveryFailure: if any driver call, allocation or check of a context fails, an operation has
// done all or nothing, and succeeds when it is repeated. Without a cache, each tensor's memory is a
// driver call.
func TestEveryFailure(t *testing.T) {
	computing := slices.Concat(elementwiseRows, layerRows, inPlaceRows, samplingRows)
	narrow, parts := computing, slices.Concat(layerRows, inPlaceRows)
	if testing.Short() {
		narrow, parts = inPlaceRows, nil
	}
	for _, c := range []struct {
		name  string
		cache memcache.Config
		dtype Dtype
		plain bool
		rows  []trialRow
	}{
		{"cached", memcache.Config{}, Float32, false, slices.Concat(memoryRows, runtimeRows, graphRows)},
		{"uncached", memcache.Config{NoCaching: true}, Float32, false, slices.Concat(computing, memoryRows)},
		{"narrow", memcache.Config{NoCaching: true}, BFloat16, false, narrow},
		{"plain", memcache.Config{NoCaching: true}, Float32, true, parts},
	} {
		t.Run(c.name, func(t *testing.T) {
			open := openTrial(c.cache, c.dtype)
			if c.plain {
				open = func(t testing.TB, f *failtest.Faults) *trialRig {
					m := openTrial(c.cache, c.dtype)(t, f)
					m.backend = plain{m.backend}
					return m
				}
			}
			failtest.Suite[*trialRig]{Open: open, Live: (*trialRig).live, Rows: c.rows}.Run(t)
		})
	}
}
