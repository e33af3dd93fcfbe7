package diff

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/callframe"
	"github.com/cistern-ml/cistern/memcache"
)

// The memory of a heap profile: bytes for each byte, and for each field of its messages, which are
// nested at most three levels deep.
const (
	profileMemory = 16
	fieldMemory   = 400
)

// heap reduces a heap profile to its run.
func (o Options) heap(in io.Reader, name string, b *budget.Budget) ([]*run, error) {
	var data []byte
	for part := make([]byte, 64<<10); ; {
		n, err := in.Read(part)
		if err := b.Memory(profileMemory * int64(n)); err != nil {
			return nil, err
		}
		data = append(data, part[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	n := fields(data, 3)
	if err := b.Charge(n*fieldMemory, n*fieldMemory/20); err != nil {
		return nil, err
	}
	p, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("want a profile of pprof: %w", err)
	}
	r := &run{name: name, reserved: -1}
	r.lacks[byStep] = "heap profiles have no steps"
	if err := r.addSamples(p); err != nil {
		return nil, err
	}
	return []*run{r}, nil
}

// parse decodes a profile. On 32 bits the library panics on field numbers of more than 31 bits.
func parse(data []byte) (p *profile.Profile, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it is damaged: %v", r)
		}
	}()
	if p, err = profile.ParseUncompressed(data); err != nil {
		return nil, err
	}
	return p, p.CheckValid()
}

// fields counts the fields of a message and of its inner messages, depth levels deep.
func fields(message []byte, depth int) (n int64) {
	for len(message) > 0 && depth > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return n
		}
		message = message[tag:]
		size := protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return n
		}
		n++
		if kind == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(message)
			n += fields(inner, depth-1)
		}
		message = message[size:]
	}
	return n
}

// moments are the pairs of values that can be compared, the best first, with their descriptions.
var moments = []struct{ name, words string }{{"peak", ""}, {"inuse", "the memory in use"}, {"alloc", "the total of all allocations"}}

// addSamples adds the samples of the best moment that the profile has.
func (r *run) addSamples(p *profile.Profile) error {
	found := false
	for _, m := range moments {
		named := func(suffix string) int {
			return slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == m.name+suffix })
		}
		bytes, blocks := named("_space"), named("_objects")
		if bytes < 0 || blocks < 0 {
			continue
		}
		found = true
		if slices.ContainsFunc(p.Sample, func(s *profile.Sample) bool { return s.Value[bytes] != 0 }) {
			if m.words != "" {
				r.notes = append(r.notes, fmt.Sprintf("%s has no peak: %s is compared", r.name, m.words))
			}
			return r.addHeld(p.Sample, bytes, blocks)
		}
	}
	if !found {
		var types []string
		for _, t := range p.SampleType {
			types = append(types, t.Type)
		}
		return fmt.Errorf("the profile has the sample types %.200q; want peak_space, inuse_space or alloc_space, with objects", strings.Join(types, ", "))
	}
	return r.addHeld(nil, 0, 0)
}

// addHeld adds samples by the indices of their values, without the memory of graphs.
func (r *run) addHeld(samples []*profile.Sample, bytes, blocks int) error {
	labelled, stacked := false, false
	for _, s := range samples {
		if slices.Contains(s.Label["state"], "graph") {
			continue
		}
		category, module, line := "not labelled", "", lineOf(s)
		if list := s.Label["category"]; len(list) > 0 {
			category = list[0]
		}
		if list := s.Label["module"]; len(list) > 0 {
			module = memcache.ModulePath(list[0])
		}
		labelled = labelled || module != "" || category != "not labelled" && category != memcache.CategoryOther.String()
		stacked = stacked || line.file != ""
		held := Amount{s.Value[bytes], s.Value[blocks]}
		if held == (Amount{}) {
			continue
		}
		if r.allocated += held.Bytes; !possible(r.allocated) {
			return errFigures
		}
		for d, k := range map[dimension]key{byCategory: {name: category}, byModule: {name: module}, byLine: line} {
			if err := r.add(d, k, held.Bytes, held.Blocks); err != nil {
				return err
			}
		}
	}
	if r.allocated > 0 && !labelled {
		r.lacks[byCategory] = r.name + " has no labels"
		r.lacks[byModule] = r.lacks[byCategory]
	}
	if r.allocated > 0 && !stacked {
		r.lacks[byLine] = r.name + " has no call stacks"
	}
	return nil
}

// lineOf returns the innermost call of the program's own code; zero: there is none.
func lineOf(s *profile.Sample) key {
	var calls []key
	for _, l := range s.Location {
		for _, line := range l.Line {
			if f := line.Function; f != nil && f.Filename != "" {
				calls = append(calls, key{f.Name, f.Filename, line.Line})
			}
		}
	}
	if calls = callframe.FromUser(calls, func(k key) (function, file string) { return k.name, k.file }); len(calls) == 0 {
		return key{}
	}
	return calls[0]
}
