package memcache

import (
	"fmt"
	"strings"
)

// feature is a set of things that programs do besides allocating and freeing.
type feature uint32

const (
	recordsStreams feature = 1 << iota
	erasing
	holding
	waiting
	freeingAgain
	pooling
	entering
	scoping
	emptying
	limiting
	driverFailures
	replacing
	resetting
	looking
	reclaiming
	faults
	manySlots // instead of few, so that the same ones are used again soon
	seldom    // instead of often: what programs do seldom
	allFeatures
)

var featureNames = [...]string{"recording", "erasing", "holding", "waiting", "freeing again", "pools", "entering", "scopes", "emptying", "limits", "driver failures",
	"replacing streams", "resetting", "looking", "reclaimers", "faults", "many slots", "seldom"}

// featureOf returns the feature of a word.
func featureOf(w uint32) feature {
	op, size := byte(w), byte(w>>16)
	switch {
	case op < 205:
		return 0
	case op < 221:
		return recordsStreams
	case op < 225:
		return erasing
	case op < 231:
		return holding
	case op < 237:
		return 0 // what is held must be able to go on
	case op < 239:
		return waiting
	case op == opFault:
		return faults
	case op < 242:
		return freeingAgain
	case op == 244 && size%2 == 0:
		return entering
	}
	return [...]feature{pooling, pooling, freeingAgain, scoping, scoping, emptying, limiting, limiting, driverFailures, driverFailures,
		replacing, resetting, looking, reclaiming}[op-242]
}

func (f feature) String() string {
	var list []string
	for i, name := range featureNames {
		if f&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return fmt.Sprintf("[%s]", strings.Join(list, ", "))
}
