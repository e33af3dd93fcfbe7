package heap

import (
	"encoding/binary"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/cistern-ml/cistern/memcache"
)

// builder makes a profile of holdings. Those of one owner, size and call stack are one sample.
type builder struct {
	profile *profile.Profile
	frames  frames
	device  string
	samples map[sampleKey]*profile.Sample
}

type sampleKey struct {
	label memcache.Label
	size  int64
	stack string // its locations
	held  bool   // by a graph
	graph uint64 // its number; 0: the peak of no open graph
}

func newBuilder(device string) *builder {
	p := &profile.Profile{PeriodType: &profile.ValueType{Type: "space", Unit: "bytes"}, Period: 1}
	for _, name := range pairs {
		p.SampleType = append(p.SampleType, &profile.ValueType{Type: name + "_objects", Unit: "count"}, &profile.ValueType{Type: name + "_space", Unit: "bytes"})
	}
	return &builder{profile: p, frames: newFrames(p), device: device, samples: make(map[sampleKey]*profile.Sample)}
}

// pairs are the values of a sample, each a number of blocks and their bytes. Every file has all of
// them in one order, so that pprof can subtract any two files.
var pairs = [...]string{pairAlloc: "alloc", pairInUse: "inuse", pairPeak: "peak"}

const (
	pairAlloc = iota
	pairInUse
	pairPeak
)

// add adds holdings to a pair.
func (b *builder) add(pair int, holdings []memcache.Holding) {
	for _, h := range holdings {
		count(b.sample(h, sampleKey{}), pair, h)
	}
}

// addGraphs adds the memory of graphs to the memory in use.
func (b *builder) addGraphs(holdings []memcache.GraphHolding) {
	for _, h := range holdings {
		s := b.sample(h.Holding, sampleKey{held: true, graph: h.Graph})
		s.Label["state"] = []string{"graph"}
		if h.Graph > 0 {
			s.NumLabel["graph"] = []int64{int64(h.Graph)}
		}
		count(s, pairInUse, h.Holding)
	}
}

// count adds a holding to a pair of a sample.
func count(s *profile.Sample, pair int, h memcache.Holding) {
	s.Value[2*pair] += int64(h.Blocks)
	s.Value[2*pair+1] += h.Bytes
}

// sample returns the sample of a holding. key has the graph, if one holds it.
func (b *builder) sample(h memcache.Holding, key sampleKey) *profile.Sample {
	locations := b.frames.locations(h)
	stack := make([]byte, 0, 64*8)
	for _, l := range locations {
		stack = binary.LittleEndian.AppendUint64(stack, l.ID)
	}
	key.label, key.size, key.stack = h.Label, h.Size, string(stack)
	s := b.samples[key]
	if s == nil {
		s = &profile.Sample{Location: locations, Value: make([]int64, 2*len(pairs)), Label: tags(h.Label, b.device), NumLabel: map[string][]int64{"bytes": {h.Size}},
			NumUnit: map[string][]string{"bytes": {"bytes"}}}
		if h.Step != 0 {
			s.NumLabel["step"] = []int64{h.Step}
		}
		b.samples[key], b.profile.Sample = s, append(b.profile.Sample, s)
	}
	return s
}

// tags returns a label's names and pairs.
func tags(l memcache.Label, device string) map[string][]string {
	m := map[string][]string{"category": {l.Category.String()}}
	if l.Module != "" {
		m["module"] = []string{l.Module}
	}
	if device != "" {
		m["device"] = []string{device}
	}
	if l.Tags == "" {
		return m
	}
	for pair := range strings.SplitSeq(l.Tags, "\n") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "category", "module", "device", "step", "bytes", "state", "graph":
			key = "tag." + key
		}
		m[key] = append(m[key], value)
	}
	return m
}
