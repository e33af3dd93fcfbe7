package transfer_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// program lists the steps of each goroutine on a pool. The seed chooses the pool's options and
// streams. A step's numbers choose its operands among the existing ones, so any list of steps is a
// valid program.
type program struct {
	seed   uint64
	device string
	steps  [][]step
}

type step struct {
	op         string
	a, b, c, d uint32
}

// ops are the steps and their frequencies.
var stepWeights = []struct {
	op     string
	weight int
}{
	{"get", 14}, {"release", 12}, {"touch", 10}, {"h2d", 12}, {"d2h", 12}, {"run", 14}, {"upload", 4}, {"download", 4}, {"d2d", 3},
	{"fill", 3}, {"h2d-rows", 2}, {"d2h-rows", 2}, {"d2d-rows", 2}, {"add", 3}, {"mix", 2}, {"wait", 3}, {"batch", 3}, {"collect", 3},
	{"register", 1}, {"empty", 1}, {"peaks", 1}, {"shard", 3}, {"stale", 1}, {"mistake", 2}, {"fault", 2}, {"cancel", 1}, {"renew", 1},
	{"stream", 1}, {"peer", 1}, {"loader", 1},
}

var allSteps = func() (ops []string) {
	for _, w := range stepWeights {
		for range w.weight {
			ops = append(ops, w.op)
		}
	}
	return ops
}()

func randomSteps(rng *rand.Rand, n int) []step {
	steps := make([]step, n)
	for i := range steps {
		steps[i] = step{allSteps[rng.IntN(len(allSteps))], rng.Uint32(), rng.Uint32(), rng.Uint32(), rng.Uint32()}
	}
	return steps
}

// String returns the program in the format of -soak.program.
func (p *program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d", p.device, p.seed)
	for _, steps := range p.steps {
		b.WriteString(" |")
		for i, s := range steps {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, " %s %d %d %d %d", s.op, s.a, s.b, s.c, s.d)
		}
	}
	return b.String()
}

func parseProgram(text string) (p *program, err error) {
	parts := strings.Split(text, "|")
	p = &program{}
	if _, err := fmt.Sscan(parts[0], &p.device, &p.seed); err != nil {
		return nil, fmt.Errorf("a program begins with its device and seed: %w", err)
	}
	for _, part := range parts[1:] {
		var steps []step
		for _, text := range strings.Split(part, ",") {
			words := strings.Fields(text)
			if len(words) == 0 {
				continue
			}
			s := step{op: words[0]}
			for i, to := range []*uint32{&s.a, &s.b, &s.c, &s.d} {
				if len(words) != 5 {
					return nil, fmt.Errorf("a step has a name and four numbers, not %q", text)
				}
				n, err := strconv.ParseUint(words[i+1], 10, 32)
				if err != nil {
					return nil, err
				}
				*to = uint32(n)
			}
			steps = append(steps, s)
		}
		p.steps = append(p.steps, steps)
	}
	return p, nil
}

// shrink returns the shortest program that it finds for which fails is true, by removing runs of
// steps and reducing numbers.
func (p *program) shrink(fails func(*program) bool) *program {
	best := p
	try := func(g int, steps []step) bool {
		next := &program{best.seed, best.device, append([][]step(nil), best.steps...)}
		next.steps[g] = steps
		if !fails(next) {
			return false
		}
		best = next
		return true
	}
	for g := range p.steps {
		for n := len(best.steps[g]) / 2; n > 0; n /= 2 {
			for i := 0; i+n <= len(best.steps[g]); {
				steps := append([]step(nil), best.steps[g][:i]...)
				if !try(g, append(steps, best.steps[g][i+n:]...)) {
					i += n
				}
			}
		}
		for i := range best.steps[g] {
			for k := range 4 {
				steps := append([]step(nil), best.steps[g]...)
				n := []*uint32{&steps[i].a, &steps[i].b, &steps[i].c, &steps[i].d}[k]
				for _, small := range []uint32{0, *n % 4, *n % 64} {
					if old := *n; small < old {
						if *n = small; try(g, append([]step(nil), steps...)) {
							break
						}
						*n = old
					}
				}
			}
		}
	}
	return best
}
