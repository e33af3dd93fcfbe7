package recording

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"
)

// Details are what a recording tells that a replay does not need: when, what for and by whom. They are read if
// [Options].Details asks for them. A recording of millions of entries keeps 24 to 32 bytes for each: names, stacks and
// frames are in tables, and entries have their indices.
type Details struct {
	// Start is when the recording began; zero: unknown.
	Start time.Time
	// Times are when the entries happened, in microseconds since Start; nil: unknown. They need not ascend: goroutines
	// take the time before they take their turn.
	Times []int64
	// Labels and Stacks are of each entry, in LabelTable and StackTable; -1: none. An entry about a block that was
	// allocated before has no label: the block's is at its alloc. Nil: no entry has one.
	Labels, Stacks []int32
	// Steps are the training steps that allocations belong to; 0: none. Nil: none at all.
	Steps []int64
	// Serials are the numbers of hand-outs, as spans and errors have them, at each alloc; 0: unknown. Nil: none at all.
	Serials []uint64

	LabelTable []Label
	StackTable [][]int32 // of frames, the innermost first
	Frames     []Frame

	// Final are of the blocks in Recording.Segments, one segment after the other; nil: unknown.
	Final []BlockDetail
	// Marks are parts of the program, in the order in which they began.
	Marks []Mark
}

// Label is what memory is for.
type Label struct {
	Module   string // names joined by dots
	Category string // as memcache.Category says it; "": unknown
	Tags     string // lines "key=value", or what PyTorch's user_metadata says
}

// Frame is a place in the program.
type Frame struct {
	Function string
	File     string
	Line     int
}

// BlockDetail is of a block at the end; -1: none.
type BlockDetail struct {
	Label, Stack int32
	Step         int64
	Serial       uint64
}

// Mark is a part of the program: a step, or whatever was marked. Times are microseconds since Details.Start.
type Mark struct {
	Name string // of a step, "step"
	Step int64  // 0: none
	// Start and End are when, From and To the entries that happened in it. End and To are -1 if it was not over when the
	// recording ended.
	Start, End int64
	From, To   int
}

// StepMark is the name of a mark that is a training step.
const StepMark = "step"

// detail is what the details of one entry are.
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

// add appends what the next entry's details are.
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

// put appends v to a list, which is nil as long as its n values are all none.
func put[T comparable](list []T, n int, v, none T) []T {
	if list == nil && v == none {
		return nil
	}
	for len(list) < n {
		list = append(list, none)
	}
	return append(list, v)
}

// label is the number of a label; -1 of the empty one.
func (c *collector) label(l Label) int32 {
	if l == (Label{}) {
		return -1
	}
	return numberOf(c.labels, &c.LabelTable, l)
}

// frame is the number of a frame.
func (c *collector) frame(f Frame) int32 { return numberOf(c.frames, &c.Frames, f) }

// numberOf is the number of v in a table, which has it by now.
func numberOf[T comparable](known map[T]int32, table *[]T, v T) int32 {
	i, ok := known[v]
	if !ok {
		i = int32(len(*table))
		known[v] = i
		*table = append(*table, v)
	}
	return i
}

// stack is the number of a stack; -1 of the empty one. added says that there was none like it.
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

// finish returns what was collected; nil if nothing was to be.
func (c *collector) finish() *Details {
	if c == nil {
		return nil
	}
	return &c.Details
}

// parseLabel reads a label out of PyTorch's user_metadata: lines "module=...", "category=..." and "step=...", as our
// own snapshots have them; all other text is tags.
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
