package replay

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/torchsnapshot"
)

// TestFromAnyMoment verifies snapshots of random programs whose history begins at random moments,
// from those moments on.
func TestFromAnyMoment(t *testing.T) {
	t.Parallel()
	programs, moments := 50, 20
	switch {
	case *long:
		moments = 200
	case testing.Short(), race.Enabled, invariants.Enabled:
		programs, moments = 14, 10
	}
	all := workloads()
	for name, w := range all {
		if w.limit > 0 && strings.Contains(w.conf, "garbage") {
			delete(all, name) // how long memory was free before the recording is not known
		}
	}
	list := slices.Sorted(maps.Keys(all))
	for i := range programs {
		name := list[i%len(list)]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := all[name]
			w.steps, w.improved = 400, i%2 == 1
			verifiesFromMoments(t, uint64(1000+i), w, moments)
		})
	}
}

func verifiesFromMoments(t *testing.T, seed uint64, w workload, moments int) {
	p := &poolCaller{recorder: newRecorder(t, seed, w)}
	var begins []int
	for range w.steps {
		begins = append(begins, len(p.cache.History()))
		p.step(w)
	}
	snapshot := p.cache.Snapshot()
	r := rand.New(rand.NewPCG(seed, 2))
	for range moments {
		from := begins[r.IntN(len(begins))]
		late := snapshot
		late.History = snapshot.History[from:]
		if len(late.History) == 0 {
			continue
		}
		var file bytes.Buffer
		require.NoError(t, torchsnapshot.Write(&file, torchsnapshot.State{Snapshot: late, Config: p.cache.Config()}))
		recs, err := recording.Read(&file, "late", recording.Options{})
		require.NoError(t, err)
		program, err := recording.NewProgram(recs[0])
		require.NoError(t, err, "from entry %d", from)
		v, err := Verify(program)
		require.NoError(t, err, "from entry %d", from)
		require.Zero(t, v.Mismatches(), "seed %d from entry %d of %d: %+v", seed, from, len(snapshot.History), v)
	}
}

// poolCaller is a recorder that also allocates from private pools, empties the cache, and releases
// pools.
type poolCaller struct {
	*recorder
	pools []*memcache.Pool
}

func (p *poolCaller) step(w workload) {
	switch x := p.r.Float64(); {
	case x < 0.02 && len(p.pools) < 3:
		pool, err := p.cache.NewPool(memcache.PoolOptions{})
		require.NoError(p.t, err)
		p.pools = append(p.pools, pool)
	case x < 0.1 && len(p.pools) > 0:
		p.ctx = p.pools[p.r.IntN(len(p.pools))].Context(context.Background())
	case x < 0.2:
		p.ctx = context.Background()
	case x < 0.21 && len(p.pools) > 0:
		p.ctx = context.Background()
		i := p.r.IntN(len(p.pools))
		require.NoError(p.t, p.pools[i].Release())
		if p.r.IntN(2) == 0 {
			require.NoError(p.t, p.pools[i].EmptyCache(context.Background()))
		}
		p.pools = slices.Delete(p.pools, i, i+1)
	default:
		p.recorder.step(w)
	}
}
