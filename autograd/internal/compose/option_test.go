package compose

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
)

// options is the set of a trial's options: those of the training, which change its numbers, and
// features, which do not.
type options uint32

const (
	bfloat16   options = 1 << iota // the tapes compute in bfloat16
	accumulate                     // a step has two backward passes, each of half the rows
	groups                         // the optimiser has two groups of parameters
	freeze                         // a parameter does not train in every other step
	schedule                       // the learning rate changes
	leaf                           // the input has a gradient
	penalty                        // every parameter is part of the loss
	clip                           // the norm of the gradients is bounded
	batches                        // each rank has its own batch; the plain training has ranks too

	frames
	modules
	sequential // a Sequential runs its layers, not the program
	checkpoints
	offloadActivations
	littlePinned // pinned memory for only some of the offloaded tensors
	notAhead     // nothing is brought back before it is needed
	offloadParameters
	offloadState
	inBackward
	ranks
	shardState
	shardGradients
	noSync
	interleave // both forward passes of a step come before the backward passes
	reset
	evaluate
	release // of values, after their last use
	once
	prepare
	hookOrder // features come to the tape in any order
	capture

	end
	training = frames - 1
)

var optionNames = []string{"bfloat16", "accumulate", "groups", "freeze", "schedule", "leaf", "penalty", "clip", "batches",
	"frames", "modules", "sequential", "checkpoints", "offload", "little-pinned", "not-ahead", "offload-parameters", "offload-state", "in-backward", "ranks", "shard-state",
	"shard-gradients", "no-sync", "interleave", "reset", "evaluate", "release", "once", "prepare", "hook-order", "capture"}

// pair are two options. A trial that draws both runs without the second.
type pair struct{ stays, goes options }

// refused are the pairs that package autograd refuses.
var refused = []pair{
	{ranks, inBackward},
	{ranks, offloadParameters},
	{capture, offloadActivations},
	{capture, offloadState},
	{capture, offloadParameters},
}

// apart are the pairs that have no meaning together, or round in another order.
var apart = []pair{{capture, freeze}, {noSync, batches}, {clip, inBackward}, {clip, shardGradients}, {reset, interleave}}

// loop is the loop of optim.ExampleLoop: gradients of two parts, a bound on their norm, and
// a schedule.
const loop = accumulate | clip | schedule

// loopUnder are the features under which the loop is compared.
var loopUnder = []options{reset, capture, checkpoints, offloadActivations, offloadParameters, offloadState, ranks}

// needs are the options without which an option has no effect.
var needs = map[options]options{shardState: ranks, shardGradients: ranks, noSync: ranks | accumulate, batches: ranks, interleave: accumulate, littlePinned: offloadActivations, notAhead: offloadActivations}

func (o options) has(p options) bool { return o&p == p }

// legal returns the set without excluded options, and with those that its options need.
func (o options) legal() options {
	if o.has(accumulate | shardGradients) { // each pass adds its reduced gradients in another order
		o |= noSync
	}
	for _, p := range slices.Concat(refused, apart) {
		if o.has(p.stays | p.goes) {
			o &^= p.goes
		}
	}
	if o.has(ranks | bfloat16) { // ranks scale gradients that are widened
		o &^= clip
	}
	if o.has(ranks | capture) { // a captured step of a Parallel is to have every gradient
		o |= penalty
	}
	for p, of := range needs {
		if !o.has(of) {
			o &^= p
		}
	}
	return o
}

// randomOptions has few of many options, or many. A third has the loop, whose options would seldom
// be drawn together otherwise.
func randomOptions(r *rand.Rand) (o options) {
	share := r.Float64()
	for p := options(1); p < end; p <<= 1 {
		if r.Float64() < share {
			o |= p
		}
	}
	if r.IntN(3) == 0 {
		o |= loop
	}
	return o.legal()
}

func (o options) String() string {
	var names []string
	for ; o != 0; o &= o - 1 {
		names = append(names, optionNames[bits.TrailingZeros32(uint32(o))])
	}
	return strings.Join(names, ",")
}

func parseOptions(s string) (o options, err error) {
	if s == "" {
		return 0, nil
	}
names:
	for name := range strings.SplitSeq(s, ",") {
		for i, known := range optionNames {
			if name == known {
				o |= 1 << i
				continue names
			}
		}
		return 0, fmt.Errorf("no option %q; there are %s", name, strings.Join(optionNames, ","))
	}
	return o, nil
}
