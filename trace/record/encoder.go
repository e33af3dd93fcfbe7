package record

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"runtime"
	"strconv"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

const stepName = recording.StepMark

// encoder writes lines; internal/recording documents them. Errors stay in the buffer's writer.
// Entries are formatted by hand, because encoding/json would take several times as long, and a step
// of training has a hundred of them.
type encoder struct {
	out   *bufio.Writer
	start time.Time
	line  []byte

	// Labels without their steps, which the entries have; at most mostKnown.
	labels  map[memcache.Label]int32
	defined int32              // the number of labels defined
	stacks  map[string]int32   // by frames
	known   map[*uintptr]int32 // stacks by their address in the cache
	frames  map[recording.Frame]int32
	key     []byte
	marks   map[uint64]int // the open marks' numbers in the file
	begun   int
	conf    func(serial uint64) string // options of a set_options
}

// mostKnown bounds the stacks found by address, and the labels. A forgotten label is defined again.
var mostKnown = 1 << 17 // a variable for tests

func newEncoder(out *bufio.Writer, stream *memcache.HistoryStream) *encoder {
	return &encoder{out: out, start: stream.Start().Time, conf: stream.Options, labels: make(map[memcache.Label]int32), stacks: make(map[string]int32),
		known: make(map[*uintptr]int32), frames: make(map[recording.Frame]int32), marks: make(map[uint64]int)}
}

// object writes a line of JSON. The values that are marshalled here can't fail.
func (enc *encoder) object(v any) {
	text, _ := json.Marshal(v)
	_, _ = enc.out.Write(append(text, '\n'))
}

// begin writes the header, and the memory in use as if it had just been allocated. No entry is
// earlier.
func (enc *encoder) begin(c *memcache.Cache, state memcache.HistoryState) {
	entries := initial(state.Segments)
	header := struct {
		Format     string `json:"format"`
		Device     string `json:"device"`
		Conf       string `json:"conf"`
		Total      int64  `json:"total_memory"`
		Limit      *int64 `json:"limit"`
		HostMemory bool   `json:"host_memory,omitempty"`
		Start      int64  `json:"start"`
		Initial    int    `json:"initial,omitempty"`
	}{Format: recording.Format, Device: c.Device().Name(), Conf: state.Options, Total: c.Device().Properties().TotalMemory,
		Start: state.Time.UnixMicro(), Initial: len(entries)}
	if state.Limit >= 0 {
		limit := max(state.Limit, 1)
		header.Limit = &limit
	}
	_, header.HostMemory = c.Device().(device.HostVisible)
	enc.object(header)
	for i := range entries {
		entries[i].Time = state.Time
		enc.entry(&entries[i])
	}
}

// initial returns entries that produce the segments.
func initial(segments []memcache.SegmentSnapshot) (list []memcache.HistoryEntry) {
	for _, s := range segments {
		e := memcache.HistoryEntry{Action: memcache.ActionSegmentAlloc, Address: s.Address, Size: s.TotalSize, Stream: s.Stream}
		if s.Expandable {
			e.Action = memcache.ActionSegmentMap
		}
		list = append(list, e)
		for _, b := range s.Blocks {
			if b.State == memcache.BlockInactive {
				continue
			}
			e := memcache.HistoryEntry{Action: memcache.ActionAlloc, Address: b.Address, Size: b.RequestedSize, Block: b.Size, Stream: s.Stream,
				Serial: b.Serial, Label: b.Label, Stack: b.Stack, Pool: s.PoolID}
			list = append(list, e)
			if b.State == memcache.BlockPendingFree {
				e.Action = memcache.ActionFreeRequested // a pending block has no stack
				list = append(list, e)
			}
		}
	}
	return list
}

// entry writes an entry, after the definitions that it needs.
func (enc *encoder) entry(e *memcache.HistoryEntry) {
	label, stack := int32(-1), enc.stack(e.Stack)
	of, private, block := true, e.Pool != (memcache.PoolID{}), int64(0)
	switch e.Action {
	case memcache.ActionAlloc:
		label, block = enc.label(e.Label), e.Block
	case memcache.ActionOOM, memcache.ActionRelabel:
		label, private = enc.label(e.Label), false
	case memcache.ActionFlush, memcache.ActionEmptyCache:
		of = private
	default:
		of, private = e.Action == memcache.ActionFreeCompleted && e.AtOnce, false
	}
	b := append(enc.line[:0], `["`...)
	address, size := uint64(e.Address), min(e.Size, recording.MaxSize-1)
	switch {
	case e.AtOnce && e.Action == memcache.ActionFreeRequested:
		b = append(b, "free"...)
	case e.Action == memcache.ActionOOM:
		address = uint64(e.Free)
		b = append(b, e.Action...)
	case e.Action == memcache.ActionSetOptions:
		address = e.Serial
		enc.object(struct {
			Options uint64 `json:"options"`
			Conf    string `json:"conf"`
		}{e.Serial, enc.conf(e.Serial)})
		b = append(b, e.Action...)
	case e.Action == memcache.ActionSetLimit:
		if size == 0 {
			size = 1
		}
		size = max(size, 0)
		b = append(b, e.Action...)
	default:
		b = append(b, e.Action...)
	}
	b = append(b, '"')
	b = strconv.AppendUint(append(b, ','), address, 10)
	b = strconv.AppendInt(append(b, ','), size, 10)
	b = strconv.AppendUint(append(b, ','), e.Stream, 10)
	b = strconv.AppendInt(append(b, ','), e.Time.Sub(enc.start).Microseconds(), 10)
	if of || stack >= 0 {
		b = strconv.AppendInt(append(b, ','), int64(stack), 10)
	}
	if of {
		var flags recording.Flags
		if e.Grew {
			flags |= recording.Grew
		}
		if private {
			flags |= recording.Private
		}
		if e.AtOnce {
			flags |= recording.AtOnce
		}
		b = strconv.AppendInt(append(b, ','), block, 10)
		b = strconv.AppendInt(append(b, ','), int64(label), 10)
		b = strconv.AppendInt(append(b, ','), e.Label.Step, 10)
		b = strconv.AppendUint(append(b, ','), e.Serial, 10)
		if flags != 0 {
			b = strconv.AppendUint(append(b, ','), uint64(flags), 10)
		}
	}
	enc.line = append(b, ']', '\n')
	_, _ = enc.out.Write(enc.line)
}

// label returns the number of a label and defines it if necessary; -1: none.
func (enc *encoder) label(l memcache.Label) int32 {
	l.Step = 0
	if l == (memcache.Label{}) {
		return -1
	}
	n, ok := enc.labels[l]
	if !ok {
		if len(enc.labels) >= mostKnown {
			clear(enc.labels)
		}
		n = enc.defined
		enc.defined++
		enc.labels[l] = n
		enc.object(struct {
			Label    int32  `json:"label"`
			Module   string `json:"module,omitempty"`
			Category string `json:"category"`
			Tags     string `json:"tags,omitempty"`
		}{n, l.Module, l.Category.String(), l.Tags})
	}
	return n
}

// stack returns the number of a stack and defines it if necessary; -1: none. The cache keeps one
// copy of each.
func (enc *encoder) stack(pcs []uintptr) int32 {
	if len(pcs) == 0 {
		return -1
	}
	if n, ok := enc.known[&pcs[0]]; ok {
		return n
	}
	enc.key = enc.key[:0]
	var list []int32
	frames := runtime.CallersFrames(pcs)
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		n := enc.frame(recording.Frame{Function: f.Function, File: f.File, Line: f.Line})
		list = append(list, n)
		enc.key = binary.LittleEndian.AppendUint32(enc.key, uint32(n))
	}
	n, ok := enc.stacks[string(enc.key)]
	if !ok {
		n = int32(len(enc.stacks))
		enc.stacks[string(enc.key)] = n
		enc.object(struct {
			Stack  int32   `json:"stack"`
			Frames []int32 `json:"frames"`
		}{n, list})
	}
	if len(enc.known) >= mostKnown {
		clear(enc.known)
	}
	enc.known[&pcs[0]] = n
	return n
}

// frame returns the number of a frame and defines it if necessary.
func (enc *encoder) frame(f recording.Frame) int32 {
	n, ok := enc.frames[f]
	if !ok {
		n = int32(len(enc.frames))
		enc.frames[f] = n
		enc.object(struct {
			Frame    int32  `json:"frame"`
			Function string `json:"function"`
			File     string `json:"file"`
			Line     int    `json:"line"`
		}{n, f.Function, f.File, f.Line})
	}
	return n
}

// beginMark and endMark write the two ends of a mark.
func (enc *encoder) beginMark(number uint64, m mark, e *memcache.HistoryEntry) {
	enc.marks[number] = enc.begun
	b := strconv.AppendInt(append(enc.line[:0], `{"mark":`...), int64(enc.begun), 10)
	b = append(b, `,"name":`...)
	if m.name == stepName { // every step has this name
		b = append(b, `"`+stepName+`"`...)
	} else {
		name, _ := json.Marshal(m.name)
		b = append(b, name...)
	}
	if m.step != 0 {
		b = strconv.AppendInt(append(b, `,"step":`...), m.step, 10)
	}
	enc.endLine(b, e)
	enc.begun++
}

func (enc *encoder) endMark(number uint64, e *memcache.HistoryEntry) {
	if n, ok := enc.marks[number]; ok {
		delete(enc.marks, number)
		enc.endLine(strconv.AppendInt(append(enc.line[:0], `{"end":`...), int64(n), 10), e)
	}
}

// endLine writes the end of an object, with the time of its event.
func (enc *encoder) endLine(b []byte, e *memcache.HistoryEntry) {
	b = strconv.AppendInt(append(b, `,"time":`...), e.Time.Sub(enc.start).Microseconds(), 10)
	enc.line = append(b, '}', '\n')
	_, _ = enc.out.Write(enc.line)
}

// end writes the last line: the statistics and segments at the end.
func (enc *encoder) end(state memcache.HistoryState) {
	type segment struct {
		Address uint64   `json:"address"`
		Size    int64    `json:"total_size"`
		Stream  uint64   `json:"stream"`
		Blocks  [][4]any `json:"blocks"`
	}
	last := struct {
		Stats    map[string]int64 `json:"stats"`
		Segments []segment        `json:"segments"`
		Details  [][4]int64       `json:"details"`
	}{Stats: state.Stats.Map(), Segments: []segment{}, Details: [][4]int64{}}
	for _, s := range state.Segments {
		one := segment{Address: uint64(s.Address), Size: s.TotalSize, Stream: s.Stream}
		for _, b := range s.Blocks {
			one.Blocks = append(one.Blocks, [4]any{uint64(b.Address), b.Size, b.RequestedSize, b.State})
			label, step := int32(-1), int64(0)
			if b.State != memcache.BlockInactive {
				label, step = enc.label(b.Label), b.Label.Step
			}
			last.Details = append(last.Details, [4]int64{int64(b.Serial), int64(label), step, int64(enc.stack(b.Stack))})
		}
		last.Segments = append(last.Segments, one)
	}
	enc.object(last)
}
