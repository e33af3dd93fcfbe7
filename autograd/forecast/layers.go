package forecast

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/report"
)

// shapes records the last result of each module in forward passes, in the order of the modules.
type shapes struct {
	mu      sync.Mutex
	modules []string
	results map[string]string
}

// note is a function for tensor.OnOperation, which does not report captured operations.
func (s *shapes) note(ctx context.Context, _ device.Stream, _ string, about fmt.Stringer) func() {
	label := memcache.LabelOf(ctx)
	if label.Category != memcache.CategoryActivation {
		return nil
	}
	result, _, _ := strings.Cut(about.String(), " = ")
	result, _, _ = strings.Cut(result, ", ")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.results == nil {
		s.results = make(map[string]string)
	}
	if _, ok := s.results[label.Module]; !ok {
		s.modules = append(s.modules, label.Module)
	}
	s.results[label.Module] = result
	return nil
}

// tree holds the layers of a model by their paths, and their parts in the order in which they were
// added.
type tree struct {
	layers map[string]*report.Layer
	parts  map[string][]string
}

// layer returns the layer of a module's label. It adds the layer and those around it if necessary.
func (t *tree) layer(module string) *report.Layer {
	path := memcache.ModulePath(module)
	l := t.layers[path]
	if l == nil {
		l = &report.Layer{Name: path}
		t.layers[path] = l
		if path != "" {
			outer := path[:max(0, strings.LastIndexByte(path, '.'))]
			t.layer(outer)
			t.parts[outer] = append(t.parts[outer], path)
		}
	}
	if path != module && l.Type == "" {
		l.Type = strings.TrimSuffix(module[strings.LastIndexByte(module, '(')+1:], ")")
	}
	return l
}

// list appends a layer and its parts.
func (t *tree) list(all []report.Layer, path string) []report.Layer {
	all = append(all, *t.layers[path])
	for _, part := range t.parts[path] {
		all = t.list(all, part)
	}
	return all
}

// layers returns the layers of the model and of labels.
func (l *log) layers(model any, s *shapes) []report.Layer {
	if model == nil {
		return nil
	}
	t := &tree{layers: make(map[string]*report.Layer), parts: make(map[string][]string)}
	t.layer("")
	if s != nil {
		for _, m := range s.modules {
			// "" also has operations outside of the model, such as the loss.
			if l := t.layer(m); m != "" || l.Output == "" {
				l.Output = s.results[m]
			}
		}
	}
	for _, p := range nn.ParametersOf(model) {
		t.layer(p.Name[:max(0, strings.LastIndexByte(p.Name, '.'))]).Parameters += p.Parameter.Value().Elements()
	}
	l.weigh(t)
	return t.list(nil, "")
}

// holder is the module and category of a label that holds memory.
type holder struct {
	module   string
	category memcache.Category
}

// weigh sets the bytes that the layers held.
func (l *log) weigh(t *tree) {
	held, labels := make(map[holder]int64), make(map[uint64]holder)
	l.walk(func(e *memcache.HistoryEntry, _ map[uint64]memcache.HistoryEntry, second bool) {
		before, ok := labels[e.Serial]
		if e.Action == memcache.ActionNote {
			for h, n := range held { // memory from before the step
				t.raise(h, n, second)
			}
			return
		}
		if ok {
			held[before] -= e.Block
			delete(labels, e.Serial)
		}
		if e.Action == memcache.ActionAlloc || ok && e.Action == memcache.ActionRelabel {
			h := holder{e.Label.Module, e.Label.Category}
			labels[e.Serial] = h
			held[h] += e.Block
			t.raise(h, held[h], second)
		}
	})
}

// raise raises a layer's figure to bytes in the second step.
func (t *tree) raise(h holder, bytes int64, second bool) {
	if !second || bytes == 0 {
		return
	}
	l := t.layer(h.module)
	if at := figure(l, h.category); at != nil {
		*at = max(*at, bytes)
	}
}

// figure returns a layer's figure of a category, or nil if it has none.
func figure(l *report.Layer, c memcache.Category) *int64 {
	switch c {
	case memcache.CategoryParameter:
		return &l.ParameterBytes
	case memcache.CategoryActivation:
		return &l.ActivationBytes
	case memcache.CategoryGradient:
		return &l.GradientBytes
	case memcache.CategoryOptimizerState:
		return &l.StateBytes
	case memcache.CategoryWorkspace:
		return &l.WorkspaceBytes
	}
	return nil
}
