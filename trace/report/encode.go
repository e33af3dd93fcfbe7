package report

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/internal/recording"
)

// The data of a page is a line of JSON, followed by columns of numbers, compressed. Text of a
// recording is in the HTML only as base64, so that there is nothing to escape, and the page's
// script writes all of it as text.

// payload is the data of the page's script.
type payload struct {
	Categories []string   `json:"categories"`
	Recordings []*encoded `json:"recordings"`
}

// encoded is one report in the payload.
type encoded struct {
	Name      string `json:"name"`
	Device    string `json:"device"`
	Conf      string `json:"conf"`
	Moments   int32  `json:"moments"`
	Exact     bool   `json:"exact"`
	Labelled  bool   `json:"labelled"`
	Stacked   bool   `json:"stacked"`
	Base      string `json:"base,omitempty"` // addresses count from it, in hexadecimal
	StartTime int64  `json:"startTime"`      // ms since 1970; 0: unknown
	TimeUnit  int64  `json:"timeUnit"`       // µs: of the column of times

	Peak         int32 `json:"peak"`
	PeakBytes    int64 `json:"peakBytes"`
	MostReserved int64 `json:"mostReserved"`
	// Forgotten is the profile of a peak that is not in the entries; -1: it is in them.
	Forgotten int      `json:"forgotten"`
	Allocs    int64    `json:"allocs"`
	Notes     []string `json:"notes"`
	Limit     int64    `json:"limit"` // of the cache; 0: none, or unknown
	Total     int64    `json:"total"` // the device's memory; 0: unknown
	Late      bool     `json:"late"`  // memory was in use before the first entry
	Run       [2]int64 `json:"run"`   // the first and the last profiled step; 0, 0: none

	Failing  int64     `json:"failing"`
	Shortage *shortage `json:"shortage,omitempty"`

	Streams []string       `json:"streams"`
	Modules []string       `json:"modules"`
	Tags    []string       `json:"tags"`
	Owners  [][4]int32     `json:"owners"` // category, module, tags, stack
	Frames  []encodedFrame `json:"frames"`
	Stacks  [][]int32      `json:"stacks"`
	Sites   []int32        `json:"sites"`
	OOMs    [][4]int64     `json:"ooms"` // moment, bytes, owner, stream
	Marks   []encodedMark  `json:"marks"`
	Steps   encodedSteps   `json:"steps"`
	Kept    []encodedKept  `json:"kept"`
	WhatIf  []estimate     `json:"whatIf"`
	Layers  []Layer        `json:"layers,omitempty"`
	// Fragmentation is that at the peak of the reserved memory; nil: too little to show.
	Fragmentation *fragmentation    `json:"fragmentation,omitempty"`
	Moment        []encodedProfile  `json:"profiles"`
	Columns       map[string]column `json:"columns"`
}

// encodedFrame is function, file and line.
type encodedFrame [3]any

// encodedMark is name, from and to.
type encodedMark [3]any

// encodedSteps has a column for each figure of the steps, and one for the names. Shares are rows.
type encodedSteps struct {
	Columns map[string][]int64 `json:"columns"`
	Names   []string           `json:"names"`
	Shares  [][]int64          `json:"shares"`
}

type encodedKept struct {
	Owner  int32 `json:"owner"`
	Size   int64 `json:"size"`
	Bytes  int64 `json:"bytes"`
	Blocks int64 `json:"blocks"`
	First  int64 `json:"first"`
	Last   int64 `json:"last"`
	Steps  int64 `json:"steps"`
	Before int64 `json:"before"`
	Grows  bool  `json:"grows"`
}

// encodedProfile has its holdings as owner, size, blocks and bytes.
type encodedProfile struct {
	Name      string     `json:"name"`
	Allocated int64      `json:"allocated"`
	Active    int64      `json:"active"`
	Graphs    int64      `json:"graphs"` // held by graphs: reserved, and not active
	Reserved  int64      `json:"reserved"`
	Holdings  [][4]int64 `json:"holdings"`
}

// column is the position of a column of numbers: the offset in bytes after the header, the number
// of numbers, and their little-endian type: "i4" or "f8", "d4" for differences, "k4" for multiples
// of 512.
type column struct {
	At   int    `json:"at"`
	N    int    `json:"n"`
	Type string `json:"type"`
}

// encoder collects the columns of all devices.
type encoder struct{ data []byte }

// encode makes the payload of a page.
func encode(reports []*Report) ([]byte, error) {
	p := payload{}
	for c := range categories - 1 {
		p.Categories = append(p.Categories, categoryName(c))
	}
	var e encoder
	for _, r := range reports {
		p.Recordings = append(p.Recordings, e.device(r))
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.DefaultCompression)
	if err != nil {
		return nil, err
	}
	head, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	head = append(head, '\n')
	for len(head)%8 != 0 {
		head = append(head, '\n')
	}
	if _, err := z.Write(append(head, e.data...)); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// add appends a column of whole numbers, in the smallest type that represents them.
func (e *encoder) add(n int, value func(i int) float64) column {
	small, multiples := true, true
	for i := range n {
		v := value(i)
		small = small && v >= math.MinInt32 && v <= math.MaxInt32
		multiples = multiples && math.Mod(v, 512) == 0 && math.Abs(v)/512 <= math.MaxInt32
	}
	switch {
	case small:
		return e.append("i4", n, value)
	case multiples:
		return e.append("k4", n, func(i int) float64 { return value(i) / 512 })
	}
	return e.append("f8", n, value)
}

// addRising appends a column of mostly rising numbers that fit into 32 bits.
func (e *encoder) addRising(n int, value func(i int) float64) column {
	return e.append("d4", n, func(i int) float64 {
		if i == 0 {
			return value(0)
		}
		return value(i) - value(i-1)
	})
}

func (e *encoder) append(kind string, n int, value func(i int) float64) column {
	for len(e.data)%8 != 0 {
		e.data = append(e.data, 0)
	}
	c := column{At: len(e.data), N: n, Type: kind}
	for i := range n {
		if v := value(i); kind == "f8" {
			e.data = binary.LittleEndian.AppendUint64(e.data, math.Float64bits(v))
		} else {
			e.data = binary.LittleEndian.AppendUint32(e.data, uint32(int32(v)))
		}
	}
	return c
}

// numbers numbers values in the order of their first use.
type numbers[T comparable] struct {
	of   map[T]int32
	list []T
}

func (n *numbers[T]) add(v T) int32 {
	i, ok := n.of[v]
	if !ok {
		if n.of == nil {
			n.of = make(map[T]int32)
		}
		i = int32(len(n.list))
		n.of[v], n.list = i, append(n.list, v)
	}
	return i
}

// device encodes a report.
func (e *encoder) device(r *Report) *encoded {
	a := r.account
	d := &encoded{Name: a.name, Device: a.device, Conf: a.conf, Moments: a.moments(), Exact: a.exact, Labelled: a.owners.labelled,
		Stacked: a.owners.stacked, Peak: a.peak, PeakBytes: a.peakBytes, MostReserved: a.mostReserved, Forgotten: -1, Notes: a.notes, Limit: a.limit, Total: a.total,
		Late: a.late(), Run: a.run, Failing: a.failing, Shortage: a.shortage, Stacks: a.owners.stacks,
		Sites: a.owners.sites, WhatIf: r.whatIf, Layers: r.layers, Fragmentation: a.fragmentation, Columns: make(map[string]column)}
	var modules, tags numbers[string]
	for _, o := range a.owners.list {
		d.Owners = append(d.Owners, [4]int32{int32(o.category), modules.add(o.module), tags.add(o.tags), o.stack})
	}
	d.Modules, d.Tags = modules.list, tags.list
	for _, f := range a.owners.frames {
		d.Frames = append(d.Frames, encodedFrame{f.function, f.file, f.line})
	}
	for i := range a.entries {
		if a.entries[i].action == recording.Alloc {
			d.Allocs++
		}
	}
	for _, m := range a.marks {
		d.Marks = append(d.Marks, encodedMark{m.name, m.from, m.to})
	}
	for _, k := range a.sites {
		d.Kept = append(d.Kept, encodedKept{k.owner, k.size, k.bytes, k.blocks, k.first, k.last, k.steps, k.before, k.grows})
	}
	for i, p := range a.profiles {
		if a.forgotten == &a.profiles[i] {
			d.Forgotten = i
		}
		q := encodedProfile{Name: p.name, Allocated: p.allocated, Active: p.active, Graphs: p.graphs, Reserved: p.reserved}
		for _, h := range p.holdings {
			q.Holdings = append(q.Holdings, [4]int64{int64(h.owner), h.size, h.blocks, h.bytes})
		}
		d.Moment = append(d.Moment, q)
	}
	d.Steps = encodeSteps(a.steps)
	e.columns(d, r)
	return d
}

// columns encodes the columns, which have a number for each block, range or entry.
func (e *encoder) columns(d *encoded, r *Report) {
	a, streams := r.account, numbers[uint64]{}
	base := uint64(math.MaxUint64)
	for i := range a.blocks {
		base = min(base, a.blocks[i].addr)
	}
	for i := range a.ranges {
		base = min(base, a.ranges[i].addr)
	}
	if r.addresses {
		d.Base = fmt.Sprintf("%#x", base)
	}
	blocks := func(name string, value func(b *block) float64) {
		d.Columns[name] = e.add(len(a.blocks), func(i int) float64 { return value(&a.blocks[i]) })
	}
	d.Columns["alloc"] = e.addRising(len(a.blocks), func(i int) float64 { return float64(a.blocks[i].alloc) })
	blocks("life", func(b *block) float64 { return float64(b.free - b.alloc) })
	blocks("wait", func(b *block) float64 { return float64(b.done - b.free) })
	blocks("addr", func(b *block) float64 { return float64(b.addr - base) })
	blocks("size", func(b *block) float64 { return float64(b.size) })
	blocks("slack", func(b *block) float64 { return float64(b.size - b.requested) })
	blocks("owner", func(b *block) float64 { return float64(b.owner) })
	blocks("stream", func(b *block) float64 { return float64(streams.add(b.stream)) })
	blocks("step", func(b *block) float64 { return float64(a.stepOf(b)) })
	ranges := func(name string, value func(m *memory) float64) {
		d.Columns[name] = e.add(len(a.ranges), func(i int) float64 { return value(&a.ranges[i]) })
	}
	ranges("rangeAddr", func(m *memory) float64 { return float64(m.addr - base) })
	ranges("rangeSize", func(m *memory) float64 { return float64(m.size) })
	ranges("rangeFrom", func(m *memory) float64 { return float64(m.from) })
	ranges("rangeTo", func(m *memory) float64 { return float64(m.to) })
	ranges("rangeStream", func(m *memory) float64 { return float64(streams.add(m.stream)) })
	ranges("rangeMapped", func(m *memory) float64 {
		if m.mapped {
			return 1
		}
		return 0
	})
	if kept := a.segments.kept; len(kept) > 0 {
		d.Columns["keptAt"] = e.addRising(len(kept), func(i int) float64 { return float64(kept[i].at) })
		d.Columns["keptBy"] = e.add(len(kept), func(i int) float64 { return float64(kept[i].by) })
		if slices.Contains(a.segments.of, -1) {
			d.Columns["apart"] = e.add(len(a.blocks), func(i int) float64 { return float64(min(a.segments.of[i], 0)) })
		}
	}
	for i := range a.entries {
		if en := &a.entries[i]; en.action == recording.OOM {
			d.OOMs = append(d.OOMs, [4]int64{int64(i), en.requested, int64(en.owner), int64(streams.add(en.stream))})
		}
	}
	for _, s := range streams.list {
		d.Streams = append(d.Streams, fmt.Sprint(s))
	}
	start := int64(0)
	for i := range a.entries {
		if t := a.entries[i].time; t != 0 && (start == 0 || t < start) {
			start = t
		}
	}
	if start == 0 {
		return
	}
	d.StartTime = start / 1e6
	times, last := make([]int64, len(a.entries)), int64(0) // µs
	for i := range a.entries {
		last = max(last, (a.entries[i].time-start)/1e3)
		times[i] = last
	}
	d.TimeUnit = last/math.MaxInt32 + 1
	d.Columns["time"] = e.addRising(len(times), func(i int) float64 { return float64(times[i] / d.TimeUnit) })
}

// encodeSteps makes columns of the steps' rows.
func encodeSteps(steps []stepAccount) encodedSteps {
	s := encodedSteps{Columns: make(map[string][]int64)}
	add := func(name string, v int64) { s.Columns[name] = append(s.Columns[name], v) }
	named := false
	for i := range steps {
		r := &steps[i]
		add("step", r.step)
		add("from", int64(r.from))
		add("to", int64(r.to))
		add("start", r.start)
		add("end", r.end)
		add("peak", r.peak)
		add("peakAt", int64(r.peakAt))
		add("reserved", r.reserved)
		add("allocs", r.allocs)
		add("frees", r.frees)
		add("bytes", r.allocatedBytes)
		add("left", r.left)
		add("ooms", r.ooms)
		failed := int64(0)
		if r.failed {
			failed = 1
		}
		add("failed", failed)
		late := int64(0)
		if r.late != nil {
			late = 1
		}
		add("late", late)
		add("h2d", r.h2d)
		add("d2h", r.d2h)
		add("hostTime", r.hostTime)
		add("deviceTime", r.deviceTime)
		add("graphs", r.graphs)
		named = named || r.name != ""
		s.Shares = append(s.Shares, r.shares)
	}
	for _, name := range []string{"failed", "late", "ooms", "h2d", "d2h", "hostTime", "deviceTime", "graphs"} {
		if column := s.Columns[name]; !anyPositive(column) {
			delete(s.Columns, name) // unknown, or it never happened
		}
	}
	if named {
		for i := range steps {
			s.Names = append(s.Names, steps[i].name)
		}
	}
	return s
}

func anyPositive(list []int64) bool {
	for _, v := range list {
		if v > 0 {
			return true
		}
	}
	return false
}
