package compose

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/tensor"
)

// trial is a random training under a set of options.
type trial struct {
	seed uint64
	options
	steps int
	drop  []int // the steps of the program that are left out
	fault fault
	at    int                 // the call that fails, counted from 1
	moved tensor.OffloadStats // of the first rank's training

	// example replaces the random model and optimiser by those that the Examples write.
	example bool

	root                   *part
	rows, width, optimizer int
}

// made returns the trial with the values that follow from its seed.
func (tr trial) made() *trial {
	r := rand.New(rand.NewPCG(tr.seed, 1))
	tr.options = tr.options.legal()
	tr.root = randomPart(r, 3, new(int)).without(tr.drop)
	tr.rows, tr.width, tr.optimizer = 2+r.IntN(3), 2+r.IntN(5), r.IntN(7)
	if tr.example {
		tr.root, tr.optimizer = examplePart(), 5 // lion
	}
	return &tr
}

// batchRows returns the number of rows that the passes of a step read together.
func (tr *trial) batchRows() int {
	if tr.has(accumulate) {
		return 2 * tr.rows
	}
	return tr.rows
}

func randomTrial(seed uint64) trial {
	tr := trial{seed: seed, options: randomOptions(rand.New(rand.NewPCG(seed, 0))), steps: 4}
	if cisterntest.Named() != "" {
		tr.options &^= ranks
	}
	return tr
}

func (tr trial) with(o options) *trial {
	tr.options = o
	return tr.made()
}

// moves reports whether a failed step may have moved something that the repeated step moves again.
func (tr *trial) moves() bool {
	return tr.options&(inBackward|offloadState|offloadParameters) != 0 ||
		!tr.root.each(func(s step) bool { return s.inner != nil || operations[s.op].kind != batchNorm })
}

// String returns the trial as an argument of -compose.replay.
func (tr *trial) String() string {
	return fmt.Sprintf("%d;%v;%d;%s;%v:%d", tr.seed, tr.options, tr.steps, strings.Trim(fmt.Sprint(tr.drop), "[]"), tr.fault, tr.at)
}

func parseTrial(s string) (*trial, error) {
	fields := strings.Split(s, ";")
	if len(fields) != 5 {
		return nil, fmt.Errorf("%q: want seed;options;steps;dropped;fault:at", s)
	}
	var tr trial
	_, err := fmt.Sscan(fields[0], &tr.seed)
	_, e := fmt.Sscan(fields[2], &tr.steps)
	name, at, _ := strings.Cut(fields[4], ":")
	_, f := fmt.Sscan(at, &tr.at)
	if err = errors.Join(err, e, f); err != nil {
		return nil, err
	}
	if tr.options, err = parseOptions(fields[1]); err != nil {
		return nil, err
	}
	for id := range strings.FieldsSeq(fields[3]) {
		n, err := strconv.Atoi(id)
		if err != nil {
			return nil, err
		}
		tr.drop = append(tr.drop, n)
	}
	tr.fault = fault(slices.Index(faultNames, name))
	return tr.made(), nil
}

// text returns the trial as a program.
func (tr *trial) text() string {
	var w strings.Builder
	fmt.Fprintf(&w, "%d steps of optimiser %d on x (%d, %d), with %v; fault %v at call %d:\n", tr.steps, tr.optimizer, tr.rows, tr.width, tr.options, tr.fault, tr.at)
	fmt.Fprintf(&w, "  loss of %s\n", tr.root.write(&w, "  ", []string{"x"}))
	return w.String()
}

// shrink leaves out options, steps of the training and steps of the program as long as the trial
// still fails.
func (tr *trial) shrink(err error, fails func(*trial) error) (*trial, error) {
	try := func(shorter *trial) bool {
		if e := fails(shorter); e != nil {
			tr, err = shorter, e
			return true
		}
		return false
	}
	for p := options(1); p < end; p <<= 1 {
		if tr.has(p) {
			try(tr.with(tr.options &^ p))
		}
	}
	for shorter := *tr; tr.steps > 1; shorter = *tr {
		shorter.steps--
		if !try(shorter.made()) {
			break
		}
	}
	var ids []int
	tr.root.each(func(s step) bool { ids = append(ids, s.id); return true })
	for size := len(ids); size > 0; size /= 2 {
		for some := range slices.Chunk(ids, size) {
			shorter := *tr
			if shorter.drop = append(slices.Clone(tr.drop), some...); !slices.Contains(tr.drop, some[0]) {
				try(shorter.made())
			}
		}
	}
	return tr, err
}
