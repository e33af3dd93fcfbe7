package simd

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
)

// Level is an instruction set that kernels are written in.
type Level uint8

// The levels. All are there on every platform, as names; [Available] says which this processor runs.
const (
	Generic Level = iota // plain Go
	NEON                 // arm64
	AVX2                 // amd64, with FMA
	AVX512               // amd64: F, BW, DQ and VL
)

// LevelVariable is the environment variable that names the level to use, in place of the best that the processor has.
const LevelVariable = "CISTERN_SIMD"

var levelNames = [...]string{Generic: "generic", NEON: "neon", AVX2: "avx2", AVX512: "avx512"}

// levels is the number of levels.
const levels = AVX512 + 1

func (l Level) String() string { return levelNames[l] }

var active atomic.Uint32

// Active is the level that kernels run at now.
func Active() Level { return Level(active.Load()) }

// chosen is what is wrong with the environment's choice.
var chosen error

// Chosen is nil, or says why [LevelVariable] names no level that can be used: kernels run at the best one then.
func Chosen() error { return chosen }

func init() {
	var l Level
	l, chosen = choose(os.Getenv(LevelVariable), Available())
	active.Store(uint32(l))
}

// choose is the level with the name, or the best of those available, which begin with the plainest.
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

// Use makes kernels run at a level that is available, until restore is called. It is for tests and benchmarks; kernels that run
// meanwhile use either.
func Use(l Level) (restore func()) {
	before := active.Swap(uint32(l))
	return func() { active.Store(before) }
}
