package recording

import (
	"encoding/binary"
	"fmt"
	"io"
)

// opcode is what scan knows of an opcode of the pickle machine.
type opcode struct {
	arg  argument
	cost cost
	mark int // how many marks it adds
}

// argument is the form of what follows an opcode.
type argument uint8

const (
	unknown argument = iota // not plain data
	none
	bytes1 // so many bytes
	bytes2
	bytes4
	bytes8
	length1 // a length of so many bytes, and that many
	length4
	length8
	frame // a length of 8 bytes, of what comes
)

// cost is what an opcode makes.
type cost uint8

const (
	nothing cost = iota
	scalar
	container
)

// opcodes are those of plain values in protocols 2 to 5. All others, those that name or call a class among them, are
// refused.
var opcodes = [256]opcode{
	0x80: {bytes1, nothing, 0}, // PROTO
	0x95: {frame, nothing, 0},  // FRAME
	'.':  {none, nothing, 0},   // STOP
	'(':  {none, container, 1}, // MARK
	'0':  {none, nothing, 0},   // POP
	'N':  {none, scalar, 0},    // NONE
	0x88: {none, scalar, 0},    // NEWTRUE
	0x89: {none, scalar, 0},    // NEWFALSE
	'J':  {bytes4, scalar, 0},  // BININT
	'K':  {bytes1, scalar, 0},  // BININT1
	'M':  {bytes2, scalar, 0},  // BININT2
	'G':  {bytes8, scalar, 0},  // BINFLOAT
	0x8a: {length1, scalar, 0}, // LONG1
	0x8c: {length1, scalar, 0}, // SHORT_BINUNICODE
	'X':  {length4, scalar, 0}, // BINUNICODE
	0x8d: {length8, scalar, 0}, // BINUNICODE8

	'}':  {none, container, 0},  // EMPTY_DICT
	']':  {none, container, 0},  // EMPTY_LIST
	')':  {none, container, 0},  // EMPTY_TUPLE
	0x85: {none, container, 0},  // TUPLE1
	0x86: {none, container, 0},  // TUPLE2
	0x87: {none, container, 0},  // TUPLE3
	'd':  {none, container, -1}, // DICT
	'l':  {none, container, -1}, // LIST
	't':  {none, container, -1}, // TUPLE
	'a':  {none, nothing, 0},    // APPEND
	'e':  {none, nothing, -1},   // APPENDS
	's':  {none, nothing, 0},    // SETITEM
	'u':  {none, nothing, -1},   // SETITEMS
	'q':  {bytes1, scalar, 0},   // BINPUT
	'r':  {bytes4, scalar, 0},   // LONG_BINPUT
	0x94: {none, scalar, 0},     // MEMOIZE
	'h':  {bytes1, scalar, 0},   // BINGET
	'j':  {bytes4, scalar, 0},   // LONG_BINGET
}

// Containers, marks among them, and other values that an entry of a snapshot needs, generously: an entry is a dict of
// about ten keys and values with a list of frames, which are shared.
const (
	containersPerRecord = 4
	scalarsPerRecord    = 48
)

// scan checks, without decoding anything, that a pickle is made of plain values within the limits.
func scan(data []byte, limits Limits) error {
	var count [3]int64
	most := [3]int64{scalar: int64(limits.Records)*scalarsPerRecord + 4096, container: int64(limits.Records)*containersPerRecord + 4096}
	marks := 0
	for at := 0; ; {
		if at >= len(data) {
			return io.ErrUnexpectedEOF
		}
		code := data[at]
		op := opcodes[code]
		if op.arg == unknown {
			return fmt.Errorf("the pickle has opcode %#x at byte %d, which names a class or is not of protocols 2 to 5: "+
				"a snapshot has plain values only", code, at)
		}
		if count[op.cost]++; op.cost != nothing && count[op.cost] > most[op.cost] {
			return tooMuch("values in the pickle", most[op.cost])
		}
		if marks += op.mark; marks > limits.Depth {
			return tooMuch("nested values", int64(limits.Depth))
		}
		at++
		n, err := argumentLength(op.arg, data[at:], limits)
		if err != nil {
			return fmt.Errorf("the opcode %#x at byte %d: %w", code, at-1, err)
		}
		if code == 0x80 && data[at] > 5 {
			return fmt.Errorf("the pickle has protocol %d; this reads 2 to 5", data[at])
		}
		if at += n; code == '.' {
			return nil
		}
	}
}

// argumentLength is the length of an argument at the beginning of data.
func argumentLength(arg argument, data []byte, limits Limits) (int, error) {
	size := argumentSizes[arg]
	if len(data) < size {
		return 0, io.ErrUnexpectedEOF
	}
	if arg < length1 {
		return size, nil
	}
	var wide [8]byte
	copy(wide[:], data[:size])
	n := binary.LittleEndian.Uint64(wide[:])
	switch {
	case arg != frame && n > uint64(limits.String):
		return 0, tooMuch("bytes in a string", int64(limits.String))
	case n > uint64(len(data)-size):
		return 0, io.ErrUnexpectedEOF
	case arg == frame:
		return size, nil
	}
	return size + int(n), nil
}

var argumentSizes = [...]int{none: 0, bytes1: 1, bytes2: 2, bytes4: 4, bytes8: 8, length1: 1, length4: 4, length8: 8, frame: 8}
