package torchfile

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// maxMemory limits the memory of a pickle's values in bytes, as counted by the costs below.
const maxMemory = 256 << 20

// opcode describes an opcode of the pickle machine: the bytes after it, and the memory that the
// unpickler takes for it, in bytes.
type opcode struct {
	arg  argument
	cost int
}

// argument is the form of an opcode's argument.
type argument uint8

const (
	unknown argument = iota // not of a state dict
	bytes0                  // a fixed number of bytes
	bytes1
	bytes2
	bytes4
	bytes8
	length1 // a length in a fixed number of bytes, and then bytes of that length
	length4
	class // two lines
)

const (
	scalar    = 150 // a value in an interface, and its entry in a dict that grows
	container = 250
	mark      = 350 // a new stack
	call      = 700 // a tensor of maxDims dimensions
)

// opcodes are those of state dicts in protocol 2. scan refuses all others, such as those that make
// objects without a function.
var opcodes = [256]opcode{
	0x80:  {bytes1, 0}, // PROTO
	'.':   {bytes0, 0}, // STOP
	'(':   {bytes0, mark},
	'0':   {bytes0, 0},      // POP
	'N':   {bytes0, scalar}, // NONE
	0x88:  {bytes0, scalar}, // NEWTRUE
	0x89:  {bytes0, scalar}, // NEWFALSE
	'J':   {bytes4, scalar}, // BININT
	'K':   {bytes1, scalar}, // BININT1
	'M':   {bytes2, scalar}, // BININT2
	'G':   {bytes8, scalar}, // BINFLOAT
	0x8a:  {length1, scalar + 500},
	'U':   {length1, scalar + 256}, // SHORT_BINSTRING
	'X':   {length4, scalar},       // BINUNICODE
	'}':   {bytes0, container},     // EMPTY_DICT
	']':   {bytes0, container},     // EMPTY_LIST
	')':   {bytes0, container},     // EMPTY_TUPLE
	0x85:  {bytes0, container},     // TUPLE1
	0x86:  {bytes0, container},     // TUPLE2
	0x87:  {bytes0, container},     // TUPLE3
	't':   {bytes0, container},     // TUPLE
	'a':   {bytes0, scalar},        // APPEND
	'e':   {bytes0, 0},             // APPENDS
	's':   {bytes0, 0},             // SETITEM
	'u':   {bytes0, 0},             // SETITEMS
	'q':   {bytes1, scalar},        // BINPUT
	'r':   {bytes4, scalar},        // LONG_BINPUT
	'h':   {bytes1, scalar},        // BINGET
	'j':   {bytes4, scalar},        // LONG_BINGET
	'c':   {class, scalar},         // GLOBAL
	'R':   {bytes0, call},          // REDUCE
	build: {bytes0, 0},             // BUILD
	'Q':   {bytes0, container},     // BINPERSID
}

// build and pop are the opcodes BUILD and POP.
const build, pop = 'b', '0'

// scan checks a pickle before it is read: its opcodes and classes must be those of state dicts, its
// lengths must be within it, and its values must take a bounded amount of memory. The unpickler
// itself would allocate any length. scan drops the attributes that BUILD sets, which are the
// versions of modules, because one dict of them could be copied without end.
func scan(text []byte) error {
	memory, at := 0, 0
	for at < len(text) {
		code := text[at]
		op := opcodes[code]
		if op.arg == unknown {
			return formatError("its pickle has the opcode %#x at byte %d, which no state dict has in protocol 2; save it with torch.save(model.state_dict(), path)", code, at)
		}
		n, err := argumentLength(op.arg, text[at+1:])
		if err != nil {
			return err
		}
		if n > len(text)-at-1 {
			return formatError("its pickle ends at byte %d, within the opcode %#x at byte %d", len(text), code, at)
		}
		switch memory += op.cost + n; {
		case memory > maxMemory:
			return formatError("its pickle has values of more than the limit of %d bytes", maxMemory)
		case code == 0x80 && text[at+1] != 2:
			return formatError("its pickle has protocol %d; save it with protocol 2, which is torch.save's default", text[at+1])
		case code == '.':
			return nil
		case code == build:
			text[at] = pop
		}
		at += 1 + n
	}
	return formatError("its pickle ends at byte %d without the opcode STOP", len(text))
}

// argumentLength returns the length of an opcode's argument at the start of rest. It may exceed
// that of rest.
func argumentLength(arg argument, rest []byte) (int, error) {
	switch arg {
	case bytes1:
		return 1, nil
	case bytes2:
		return 2, nil
	case bytes4:
		return 4, nil
	case bytes8:
		return 8, nil
	case length1:
		if len(rest) < 1 {
			return 1, nil
		}
		if rest[0] == 0 {
			return 0, formatError("its pickle has a number or a string of 0 bytes")
		}
		return 1 + int(rest[0]), nil
	case length4:
		if len(rest) < 4 {
			return 4, nil
		}
		return int(min(4+int64(binary.LittleEndian.Uint32(rest)), maxPickle+1)), nil
	case class:
		lines := bytes.SplitN(rest[:min(len(rest), 512)], []byte("\n"), 3)
		if len(lines) < 3 {
			return 0, formatError("its pickle has a class whose name does not end")
		}
		name := string(lines[0]) + "." + string(lines[1])
		if _, ok := classes[name]; !ok {
			return 0, formatError("its pickle names the class %q, which is not of a state dict; in Python: torch.save(model.state_dict(), path)", strings.ToValidUTF8(name, "?"))
		}
		return len(lines[0]) + len(lines[1]) + 2, nil
	}
	return 0, nil
}
