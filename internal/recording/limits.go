package recording

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/internal/budget"
)

// Options are the options of [Read].
type Options struct {
	budget.Limits
	// Details requests times, labels and stacks, too.
	Details bool
}

// Bounds of a recording's contents. No program writes more.
const (
	maxDepth   = 64            // of nested values
	maxString  = 1 << 20       // bytes of a string
	maxDigits  = 64            // of a number in JSON
	maxNotes   = 10            // of one kind
	maxName    = 4 << 10       // bytes of a function or file name
	maxLine    = 4 << 10       // bytes of an entry in JSON lines
	maxKeys    = 512           // of a dict in a pickle: each new one is compared with all others
	maxEntries = math.MaxInt32 // steps number entries with 32 bits
)

// The memory charged for the values of a file, in bytes: about twice their size, because lists grow
// by copying.
const (
	entryMemory      = 165
	detailMemory     = 60
	segmentMemory    = 250
	blockMemory      = 130
	fieldMemory      = 64  // of an object
	definitionMemory = 200 // and of a mark
	stepMemory       = 60  // of a program
	liveMemory       = 150 // of a live block while a program is made
)

// entryWork is the work of turning an entry of the file into one of a program, in units of package
// budget, beside the reading of its bytes.
const entryWork = 15

// lineWork is the work of decoding a line of JSON, beside its bytes.
const lineWork = 100

// tokenWork is the work of a token of JSON, beside its bytes.
const tokenWork = 15

// The cost of a recording beside its entries. A file may have a recording for each of very many
// devices.
const (
	recordingMemory = 2000
	recordingWork   = 2000
)

// lookupWork is the work of reading the fields of a dict, beside 4 units for each of its keys.
const lookupWork = 50

// errTooMuch is an error about a value that no program writes.
func errTooMuch(what string, most int) error {
	return fmt.Errorf("more than %d %s: no recording has so many", most, what)
}

// checkStrings is an error if one of them is too long.
func checkStrings(list ...string) error {
	for _, text := range list {
		if len(text) > maxString {
			return errTooMuch("bytes in a string", maxString)
		}
	}
	return nil
}
