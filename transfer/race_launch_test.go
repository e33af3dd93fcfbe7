//go:build race

package transfer_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// Mistakes with memory that kernels use in place, each with its corrected twin. Between the halves of each lies enough time
// that they do not meet by the clock.
var inPlaceMistakes = map[string]func(t *testing.T, r *rig, b transfer.Buffer, mem []byte, twin bool){
	"another stream's kernel": func(t *testing.T, r *rig, b transfer.Buffer, mem []byte, twin bool) {
		l := r.inPlace(t, b, mem, 0, 4096, 1)
		if twin {
			_, err := r.pool.Launch(t.Context(), r.b, l, transfer.BufferUse{Buffer: b, Writes: true})
			require.NoError(t, err)
		} else {
			require.NoError(t, r.b.Launch(l)) // not the pool's: nothing orders it
		}
	},
	"a kernel that claims to read": func(t *testing.T, r *rig, _ transfer.Buffer, _ []byte, twin bool) {
		b := r.get(t, 4096)
		mem := b.Bytes()
		for _, s := range []device.Stream{r.a, r.b} {
			_, err := r.pool.Launch(t.Context(), s, r.inPlace(t, b, mem, 0, 4096, 1), transfer.BufferUse{Buffer: b, Writes: twin})
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
		}
		require.NoError(t, b.Release())
	},
	"the host": func(t *testing.T, _ *rig, b transfer.Buffer, mem []byte, twin bool) {
		if twin {
			require.NoError(t, b.Wait(t.Context()))
		}
		mem[0] = 0
	},
	"the host, registered": func(t *testing.T, r *rig, _ transfer.Buffer, _ []byte, twin bool) {
		mine := make([]byte, 4096)
		b, err := r.pool.Register(t.Context(), mine)
		require.NoError(t, err)
		c, err := r.pool.Launch(t.Context(), r.b, r.inPlace(t, b, mine, 0, 4096, 1), transfer.BufferUse{Buffer: b, Writes: true})
		require.NoError(t, err)
		time.Sleep(10 * time.Millisecond)
		if twin {
			require.NoError(t, c.Wait(t.Context()))
		}
		mine[0] = 0
		require.NoError(t, b.Release())
	},
	"a batch": func(t *testing.T, r *rig, _ transfer.Buffer, _ []byte, twin bool) {
		batch := r.pool.NewBatch()
		block := r.alloc(t, 4096, r.a)
		require.NoError(t, batch.Upload(t.Context(), block, 0, make([]byte, 4096)))
		_, err := batch.Submit(t.Context(), r.a)
		require.NoError(t, err)
		require.NoError(t, batch.Close())
		time.Sleep(10 * time.Millisecond)
		r.pool.Stats()
		if twin {
			e, err := r.dev.NewEvent(device.EventOptions{})
			require.NoError(t, err)
			require.NoError(t, r.a.Record(e))
			require.NoError(t, r.b.Wait(e))
		}
		require.NoError(t, block.RecordStream(r.b))
		require.NoError(t, r.b.Launch(r.addTo(t, block, 0, 4096, 1)))
		require.NoError(t, block.Free())
	},
}

const inPlaceChild = "CISTERN_TRANSFER_IN_PLACE"

// TestInPlaceMistake is one of them, in a process of its own.
func TestInPlaceMistake(t *testing.T) {
	do := inPlaceMistakes[os.Getenv(inPlaceChild)]
	if do == nil {
		t.Skip("run by TestInPlaceMistakesAreReported")
	}
	r := newRig(t, transfer.Config{})
	r.host(t)
	b := r.get(t, 4096)
	mem := b.Bytes()
	_, err := r.pool.Launch(t.Context(), r.a, r.inPlace(t, b, mem, 0, 4096, 1), transfer.BufferUse{Buffer: b, Writes: true})
	require.NoError(t, err)
	time.Sleep(10 * time.Millisecond)
	do(t, r, b, mem, os.Getenv(inPlaceChild+"_TWIN") != "")
	require.NoError(t, b.Release())
}

func TestInPlaceMistakesAreReported(t *testing.T) {
	for name := range inPlaceMistakes {
		t.Run(name, func(t *testing.T) {
			for _, twin := range []string{"", "1"} {
				cmd := exec.Command(os.Args[0], "-test.run=^TestInPlaceMistake$", "-test.v")
				cmd.Env = append(os.Environ(), inPlaceChild+"="+name, inPlaceChild+"_TWIN="+twin, "GORACE=atexit_sleep_ms=10",
					"CISTERN_TEST_DEVICE=") // the detector sees the host
				out, _ := cmd.CombinedOutput() // the detector's exit status is not 0
				if twin == "" {
					require.Contains(t, string(out), "WARNING: DATA RACE", "the mistake was hidden")
				} else {
					require.NotContains(t, string(out), "DATA RACE")
					require.Contains(t, string(out), "PASS")
				}
			}
		})
	}
}
