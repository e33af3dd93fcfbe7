package simd

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
)

// Level is an instruction set for which kernels are written.
type Level uint8

// The levels. All of them are defined on every platform; [Available] returns those that this
// processor runs.
const (
	Generic Level = iota // plain Go
	NEON                 // arm64
	AVX2                 // amd64, with FMA
	AVX512               // amd64: F, BW, DQ and VL
)

// LevelVariable is the environment variable with the name of the level to use, instead of the best
// one of the processor.
const LevelVariable = "CISTERN_SIMD"

var levelNames = [...]string{Generic: "generic", NEON: "neon", AVX2: "avx2", AVX512: "avx512"}

// levels is the number of levels.
const levels = AVX512 + 1

func (l Level) String() string { return levelNames[l] }

var active atomic.Uint32

// Active returns the level at which kernels run now.
func Active() Level { return Level(active.Load()) }

// chosen is the error of the environment's choice.
var chosen error

// Chosen returns an error if [LevelVariable] names a level that can't be used. In that case kernels
// run at the best level.
func Chosen() error { return chosen }

func init() {
	var l Level
	l, chosen = choose(os.Getenv(LevelVariable), Available())
	active.Store(uint32(l))
}

// choose returns the level with the name, or the best of those available, which is the last one.
func choose(name string, available []Level) (Level, error) {
	best := available[len(available)-1]
	if name == "" {
		return best, nil
	}
	var names []string
	for _, l := range available {
		if strings.EqualFold(name, l.String()) {
			return l, nil
		}
		names = append(names, l.String())
	}
	return best, fmt.Errorf("%s is %q: this processor, in this build, runs %s", LevelVariable, name, strings.Join(names, ", "))
}

// Use makes kernels run at an available level until restore is called. It is for tests and
// benchmarks. Kernels that are running during the call use either level.
func Use(l Level) (restore func()) {
	before := active.Swap(uint32(l))
	return func() { active.Store(before) }
}
