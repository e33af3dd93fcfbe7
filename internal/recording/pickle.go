package recording

import (
	"bufio"
	"errors"
	"fmt"

	"github.com/nlpodyssey/gopickle/pickle"
	"github.com/nlpodyssey/gopickle/types"

	"github.com/cistern-ml/cistern/internal/budget"
)

// readPickle reads a file of torch.cuda.memory._dump_snapshot.
func readPickle(in *bufio.Reader, o Options, b *budget.Budget) ([]*Recording, error) {
	s := newSnapshotReader(in, o, b)
	value, err := s.unpickle()
	if err != nil {
		return nil, err
	}
	return s.recordings(value)
}

// snapshotReader reads a snapshot. Its entries, which are most of it, shrink as soon as they are
// read.
type snapshotReader struct {
	*scanner
	entries []Entry
	taken   int // number of entries that recordings have taken
	copied  int // entries
	pools   map[uint64][2]uint64
	numbers map[[2]uint64]uint64 // of pools, by ID

	// With details:
	tables  *collector             // of all entries
	frames  map[*types.Dict]int32  // frames that were read
	emptied []types.List           // remainders of lists of frames that were read, by stack
	names   map[string]namedDetail // of user_metadata
	found   []int32                // frames of the stack that is being read
}

func newSnapshotReader(in *bufio.Reader, o Options, b *budget.Budget) *snapshotReader {
	return &snapshotReader{scanner: newScanner(in, b), tables: newCollector(o)}
}

// unpickle decodes a pickle that the scanner accepts. The decoder panics on some pickles with
// misplaced values.
func (s *snapshotReader) unpickle() (value any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the pickle is corrupt: %v", r)
		}
	}()
	u := pickle.NewUnpickler(s.scanner)
	u.FindClass = func(string, string) (any, error) { return nil, errors.New("the pickle names a class") }
	u.PersistentLoad = s.shrink // called for every dict, by an opcode of the scanner
	value, err = u.Load()
	switch {
	case s.err != nil:
		return nil, s.err
	case errors.Is(err, budget.ErrExceeded):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("the pickle is corrupt: %w", err)
	}
	return value, nil
}

// entryIndex remains of a dict that was an entry, and stackIndex of a list that was its frames.
type (
	entryIndex int
	stackIndex int32
)

// shrink empties a dict that is an entry, and its list of frames. An invalid entry stays, so that
// an error can name its position.
func (s *snapshotReader) shrink(v any) (any, error) {
	d, ok := v.(*types.Dict)
	if !ok {
		return v, nil
	}
	if len(*d) > maxKeys {
		return nil, errTooMuch("keys in a dict", maxKeys)
	}
	// a key is compared with all before it, and fields are looked up
	if err := s.budget.Work(10 + 2*int64(len(*d))); err != nil {
		return nil, err
	}
	if _, again := s.shrunk(d); again {
		return nil, errors.New("an entry is changed after it was read")
	}
	if _, ok := field(d, "action"); !ok {
		return v, nil
	}
	e, ok, err := s.traceEntry(d, "")
	if err != nil || !ok {
		return v, nil
	}
	if s.tables != nil {
		s.tables.add(s.detail(d)) // empties the list of frames, too
	} else if frames, ok := field(d, "frames"); ok {
		if list, ok := frames.(*types.List); ok && *list != nil {
			s.emptyList(list, nil)
		}
	}
	if err := s.budget.Memory(entryBytes - 2*int64(len(*d))*int64(scalar) - int64(container)); err != nil {
		return nil, err
	}
	*d = types.Dict{{Value: entryIndex(len(s.entries))}}
	s.entries = append(s.entries, e)
	return d, nil
}

// emptyList replaces a list of frames that was read by its remainder.
func (s *snapshotReader) emptyList(list *types.List, left types.List) {
	_ = s.budget.Memory(listBytes - int64(len(*list))*int64(scalar) - int64(container)) // a refund
	*list = left
}

// shrunk returns the index of the entry that a dict was.
func (s *snapshotReader) shrunk(v any) (int, bool) {
	if d, ok := v.(*types.Dict); ok && len(*d) > 0 {
		if i, ok := (*d)[0].Value.(entryIndex); ok && (*d)[0].Key == nil {
			return int(i), true
		}
	}
	return 0, false
}
