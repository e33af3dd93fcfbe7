package record

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// account is the holders at the peak of a recording, kept by hand, entry by entry.
func account(rec *recording.Recording) (peak int64, of map[string]int64) {
	d := rec.Details
	live := map[uint64]string{}
	bytes := map[uint64]int64{}
	now := map[string]int64{}
	var sum int64
	for i, e := range rec.Entries {
		switch e.Action {
		case recording.Alloc:
			name := "other"
			if l := d.Labels[i]; l >= 0 {
				name = fmt.Sprint(d.LabelTable[l].Module, " ", d.LabelTable[l].Category)
			}
			name = fmt.Sprint(name, " ", d.Steps[i])
			live[uint64(e.Addr)], bytes[uint64(e.Addr)] = name, e.Bytes
			now[name] += e.Bytes
			if sum += e.Bytes; sum > peak {
				peak, of = sum, map[string]int64{}
				for name, n := range now {
					if n != 0 {
						of[name] = n
					}
				}
			}
		case recording.FreeRequested:
			n := bytes[uint64(e.Addr)]
			now[live[uint64(e.Addr)]] -= n
			sum -= n
		}
	}
	return peak, of
}

// TestAccount: the holders of the peak, added up from a recording, are the cache's, to the byte.
func TestAccount(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		goroutines := 1 + int(seed%2)*3
		r := newRig(t, program{null: true, config: memcache.Config{}, capacity: 1 << 36, streams: 3, goroutines: goroutines, steps: 300, largest: 22, still: true})
		var file bytes.Buffer
		rec, err := Start(&file, r.cache, Options{Gzip: true})
		require.NoError(t, err)
		r.run(seed)
		require.NoError(t, rec.Close())
		peak, of := account(read(t, file.Bytes()))
		most := r.cache.MaxMemoryAllocated()
		want, sum := map[string]int64{}, int64(0)
		for _, h := range r.cache.PeakProfile().Holdings {
			want[fmt.Sprint(h.Label.Module, " ", h.Label.Category, " ", h.Label.Step)] += h.Bytes
			sum += h.Bytes
		}
		require.Equal(t, most, sum)
		if goroutines > 1 && peak != most {
			// Overlapping calls have no order, and the recording may have another one than the
			// statistics. The peaks differ by no more than the goroutines may allocate at once.
			require.InDelta(t, most, peak, float64(goroutines)*(1<<22))
			continue
		}
		require.Equal(t, want, of)
	}
}
