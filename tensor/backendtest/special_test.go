package backendtest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Every operation at special numbers among ordinary ones, in tensors about as large as the vectors
// of a processor, at each of its levels of instructions. NaN, infinities and zeros of both signs
// are where they are in package reference, in float32 and float64. A failed case can be run alone
// by its name. To run 2,000 cases of each operation:
//
//	go test ./tensor/backendtest -run TestSpecialNumbers -backendtest.cases 140000
func TestSpecialNumbers(t *testing.T) {
	r := newRig(t, 1<<30)
	defer simd.Use(simd.Active())()
	levels := simd.Available()
	// the race detector does not see vector instructions
	if _, onHost := r.Device().(*host.Device); !onHost || race.Enabled {
		levels = levels[:1]
	}
	for _, level := range levels {
		simd.Use(level)
		t.Run(level.String()+"/float32", func(t *testing.T) { testSpecialNumbers[float32](t, r) })
		t.Run(level.String()+"/float64", func(t *testing.T) { testSpecialNumbers[float64](t, r) })
	}
}

func testSpecialNumbers[T kernel.Float](t *testing.T, r *rig) {
	ops := operationsOf[T]()
	n := caseCount(len(ops))
	if r.brief() {
		n /= 3
	}
	for i := range n {
		op := ops[i%len(ops)]
		run := op.run
		op.run = func(c *trial[T]) {
			c.kind, c.widths = limits, true
			run(c)
		}
		t.Run(fmt.Sprintf("%s/%d", op.name, i), func(t *testing.T) { runTrial(t, r, rand.New(rand.NewPCG(uint64(i), 77)), op) })
	}
}
