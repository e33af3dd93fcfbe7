package recording

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"
)

// Details are the data of a recording that a replay does not need: times, labels, stacks, steps.
// They are read if [Options].Details is set. A recording of millions of entries keeps 24 to 32
// bytes for each, because names, stacks and frames are in tables to which entries refer by index.
type Details struct {
	// Start is the start of the recording; zero: unknown.
	Start time.Time
	// Times are the entries' times in microseconds since Start; nil: unknown. They need not ascend,
	// because goroutines take the time before they take the lock.
	Times []int64
	// Labels and Stacks are each entry's indices in LabelTable and StackTable; -1: none. Only the
	// alloc of a block has its label. Nil: no entry has one.
	Labels, Stacks []int32
	// Steps are the training steps of the allocations; 0: none. Nil: no allocation has one.
	Steps []int64
	// Serials are the serial numbers of hand-outs at each alloc, as in spans and errors; 0:
	// unknown. Nil: all are unknown.
	Serials []uint64

	LabelTable []Label
	StackTable [][]int32 // of frames, the innermost first
	Frames     []Frame

	// Final has the details of the blocks in Recording.Segments, one segment after the other; nil:
	// unknown.
	Final []BlockDetail
	// Marks are parts of the program, ordered by their start.
	Marks []Mark
}

// Label describes the purpose of memory.
type Label struct {
	Module   string // names joined by dots
	Category string // the text of memcache.Category; "": unknown
	Tags     string // lines "key=value", or the text of PyTorch's user_metadata
}

// Frame is a source line of the program.
type Frame struct {
	Function string
	File     string
	Line     int
}

// BlockDetail has the details of a block at the end; -1: none.
type BlockDetail struct {
	Label, Stack int32
	Step         int64
	Serial       uint64
}

// Mark is a part of the program: a step, or a part that the program marked. Times are microseconds
// since Details.Start.
type Mark struct {
	Name string // "step" for a step
	Step int64  // 0: none
	// Start and End are times, From and To the range of entries. End and To are -1 if the part had
	// not ended when the recording did.
	Start, End int64
	From, To   int
}

// StepMark is the name of the mark of a training step.
const StepMark = "step"

// detail has the details of one entry.
type detail struct {
	time         int64
	label, stack int32
	step         int64
	serial       uint64
}

// collector makes Details. A nil one collects nothing.
type collector struct {
	Details
	n      int // entries
	labels map[Label]int32
	frames map[Frame]int32
	stacks map[string]int32
	key    []byte
}

func newCollector(o Options) *collector {
	if !o.Details {
		return nil
	}
	return &collector{labels: make(map[Label]int32), frames: make(map[Frame]int32), stacks: make(map[string]int32)}
}

// add appends the details of the next entry.
func (c *collector) add(d detail) {
	if c == nil {
		return
	}
	c.Times = put(c.Times, c.n, d.time, 0)
	c.Labels = put(c.Labels, c.n, d.label, -1)
	c.Stacks = put(c.Stacks, c.n, d.stack, -1)
	c.Steps = put(c.Steps, c.n, d.step, 0)
	c.Serials = put(c.Serials, c.n, d.serial, 0)
	c.n++
}

// put appends v to a list, which is nil while its n values are all none.
func put[T comparable](list []T, n int, v, none T) []T {
	if list == nil && v == none {
		return nil
	}
	for len(list) < n {
		list = append(list, none)
	}
	return append(list, v)
}

// label returns the number of a label, or -1 for the empty one.
func (c *collector) label(l Label) int32 {
	if l == (Label{}) {
		return -1
	}
	return numberOf(c.labels, &c.LabelTable, l)
}

// frame returns the number of a frame.
func (c *collector) frame(f Frame) int32 { return numberOf(c.frames, &c.Frames, f) }

// numberOf returns the number of v in a table, and adds v if it is new.
func numberOf[T comparable](known map[T]int32, table *[]T, v T) int32 {
	i, ok := known[v]
	if !ok {
		i = int32(len(*table))
		known[v] = i
		*table = append(*table, v)
	}
	return i
}

// stack returns the number of a stack, or -1 for the empty one. added reports whether the stack is
// new.
func (c *collector) stack(frames []int32) (i int32, added bool) {
	if len(frames) == 0 {
		return -1, false
	}
	c.key = c.key[:0]
	for _, f := range frames {
		c.key = binary.LittleEndian.AppendUint32(c.key, uint32(f))
	}
	i, ok := c.stacks[string(c.key)]
	if !ok {
		i = int32(len(c.StackTable))
		c.stacks[string(c.key)] = i
		c.StackTable = append(c.StackTable, append([]int32(nil), frames...))
	}
	return i, !ok
}

// finish returns the collected details, or nil for a nil collector.
func (c *collector) finish() *Details {
	if c == nil {
		return nil
	}
	return &c.Details
}

// parseLabel parses PyTorch's user_metadata: lines "module=...", "category=..." and "step=...", as
// in our own snapshots. All other text is tags.
func parseLabel(text string) (l Label, step int64) {
	if !strings.Contains(text, "=") {
		return Label{Tags: text}, 0
	}
	var tags []string
	for line := range strings.SplitSeq(text, "\n") {
		key, value, _ := strings.Cut(line, "=")
		switch n, err := strconv.ParseInt(value, 10, 64); {
		case key == "module":
			l.Module = value
		case key == "category":
			l.Category = value
		case key == "step" && err == nil:
			step = n
		default:
			tags = append(tags, line)
		}
	}
	l.Tags = strings.Join(tags, "\n")
	return l, step
}
