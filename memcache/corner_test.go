package memcache

import "testing"

// word is a call of a program.
func word(op, at, size, x byte) uint32 {
	return uint32(op) | uint32(at)<<8 | uint32(size)<<16 | uint32(x)<<24
}

// The calls of cornerPrograms.
const (
	callAlloc  = 0 // or free
	callRecord = 205
	callErase  = 221
	callHold   = 225
	callPools  = 242
	callEnter  = 244
	callEmpty  = 247
)

// cornerPrograms are programs for corner cases that random ones reach too seldom.
var cornerPrograms = map[string]struct {
	options map[string]byte
	words   []uint32
}{
	"an erased stream is recorded again outside of the context": {map[string]byte{"exact": 1}, []uint32{
		word(callPools, 0, 0, 0), word(callAlloc, 0, 3, 1),
		word(callEnter, 0, 0, 1), word(callRecord, 0, 0, 2), word(callErase, 0, 0, 2), word(callEnter, 0, 0, 0),
		word(callRecord, 0, 0, 2), word(callHold, 0, 0, 2),
		word(callEnter, 0, 0, 1), word(callAlloc, 0, 3, 1), word(callEnter, 0, 0, 0), word(callAlloc, 1, 3, 1),
	}},
	"a pool is emptied past another one's free": {map[string]byte{"exact": 1}, []uint32{
		word(callPools, 0, 0, 0), word(callPools, 0, 0, 0), word(callPools, 0, 0, 0),
		word(callAlloc, 0, 3, 1), word(callAlloc, 1, 3, 1|1<<5), word(callRecord, 0, 0, 2), word(callRecord, 1, 0, 2), word(callHold, 0, 0, 2),
		word(callAlloc, 2, 3, 1), word(callRecord, 2, 0, 2),
		word(callAlloc, 0, 3, 1), word(callAlloc, 1, 3, 1), word(callPools, 0, 0, 0), word(callEmpty, 0, 1, 0), word(callAlloc, 2, 3, 1),
	}},
	"another device uses a block": {map[string]byte{"reuse": 2, "far": 1}, []uint32{
		word(callAlloc, 0, 3, 1), word(callRecord, 0, 0, 4), word(callHold, 0, 0, 4), word(callAlloc, 0, 3, 1), word(callAlloc, 1, 3, 1),
	}},
	"what is left of a shrunk block is young": {map[string]byte{"expandable": 1, "granule": 1, "collection": 1}, []uint32{
		word(callAlloc, 0, 3, 0), word(callAlloc, 0, 3, 0), word(callAlloc, 1, 3, 1), word(callAlloc, 1, 3, 1), word(callAlloc, 2, 3, 2),
		word(callEmpty, 0, 0, 228), word(callEmpty, 0, 0, 228),
	}},
	"a released pool keeps count of the driver's calls": {map[string]byte{"exact": 1, "expandable": 1}, []uint32{
		word(callPools, 0, 0, 0), word(callPools, 0, 0, 0), word(callPools, 0, 0, 0), word(callAlloc, 0, 3, 1|1<<5), word(callAlloc, 1, 3, 1|1<<5),
		word(callAlloc, 0, 3, 1), word(callAlloc, 1, 3, 1), word(callPools, 0, 0, 0), word(callEmpty, 0, 1, 0), word(callEmpty, 0, 1, 0),
	}},
	"a released pool without memory is forgotten": {map[string]byte{"exact": 1, "expandable": 1}, []uint32{
		word(callPools, 0, 0, 0), word(callPools, 0, 0, 0), word(callPools, 0, 0, 0), word(callAlloc, 0, 3, 1), word(callAlloc, 1, 3, 1|2<<5),
		word(callAlloc, 2, 3, 1|1<<5), word(callAlloc, 2, 3, 1),
		word(callPools, 0, 0, 0), word(callEmpty, 0, 1, 0), word(callEmpty, 0, 1, 0),
	}},
	"trimming forgets released pools": {map[string]byte{"exact": 1}, []uint32{
		word(callPools, 0, 0, 0), word(callPools, 0, 0, 0), word(callPools, 0, 0, 0),
		word(callAlloc, 2, 3, 1|1<<5), word(callAlloc, 2, 3, 1), word(callPools, 0, 0, 0), word(callEmpty, 0, 0, 0), word(callEmpty, 0, 1, 0),
	}},
}

// cornerProgram returns the named program.
func cornerProgram(name string) program {
	q := program{without: seldom, words: cornerPrograms[name].words}
	for i := range q.choices {
		q.choices[i] = cornerPrograms[name].options[optionTable[i].name]
	}
	return q
}

func TestCornerPrograms(t *testing.T) {
	for name := range cornerPrograms {
		if _, err := cornerProgram(name).attempt(true, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
