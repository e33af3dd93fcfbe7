package heap

import (
	"strings"

	"github.com/google/pprof/profile"

	"github.com/cistern-ml/cistern/internal/callframe"
	"github.com/cistern-ml/cistern/memcache"
)

// frames makes the locations of a profile, each once.
type frames struct {
	profile   *profile.Profile
	mapping   *profile.Mapping
	calls     map[uintptr]*profile.Location // by program counter
	names     map[string]*profile.Location  // of frames that are not calls
	modules   map[string]string             // by path: the path with the types of its layers
	functions map[function]*profile.Function
}

type function struct{ name, file string }

func newFrames(p *profile.Profile) frames {
	// Everything is resolved here, so that viewers don't need the program.
	m := &profile.Mapping{ID: 1, HasFunctions: true, HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true}
	p.Mapping = []*profile.Mapping{m}
	return frames{profile: p, mapping: m, calls: make(map[uintptr]*profile.Location), names: make(map[string]*profile.Location), modules: make(map[string]string),
		functions: make(map[function]*profile.Function)}
}

// locations returns a holding's call stack from the user's line on or, without one, the path of its
// module below its category; the innermost first.
func (f *frames) locations(h memcache.Holding) []*profile.Location {
	if len(h.Stack) == 0 {
		return f.path(h.Label)
	}
	list := make([]*profile.Location, 0, len(h.Stack))
	for _, pc := range h.Stack {
		if l := f.call(pc); l != nil {
			list = append(list, l)
		}
	}
	return callframe.FromUser(list, func(l *profile.Location) (string, string) {
		return l.Line[0].Function.Name, l.Line[0].Function.Filename
	})
}

// modulesOf stores the types of layers, for the frames of the modules inside.
func (f *frames) modulesOf(holdings []memcache.Holding) {
	for _, h := range holdings {
		if path := memcache.ModulePath(h.Module); path != h.Module {
			f.modules[path] = h.Module
		}
	}
}

// path returns frames that are not calls. Each has the whole path in its name, because the linear
// layers of two blocks are not the same, and the type of the layer.
func (f *frames) path(l memcache.Label) []*profile.Location {
	var list []*profile.Location
	for m := memcache.ModulePath(l.Module); m != ""; m = m[:max(0, strings.LastIndexByte(m, '.'))] {
		name := f.modules[m]
		if name == "" {
			name = m
		}
		list = append(list, f.name(name))
	}
	return append(list, f.name("("+l.Category.String()+")"))
}

func (f *frames) name(name string) *profile.Location {
	l := f.names[name]
	if l == nil {
		l = f.location(profile.Line{Function: f.function(name, "")})
		f.names[name] = l
	}
	return l
}

// call returns the location of a program counter; nil: it is not a call of the program.
func (f *frames) call(pc uintptr) *profile.Location {
	l, ok := f.calls[pc]
	if ok {
		return l
	}
	if call, ok := callframe.Of(pc); ok {
		l = f.location(profile.Line{Function: f.function(call.Function, call.File), Line: int64(call.Line)})
		l.Address = uint64(pc)
	}
	f.calls[pc] = l
	return l
}

func (f *frames) location(lines ...profile.Line) *profile.Location {
	l := &profile.Location{ID: uint64(len(f.profile.Location)) + 1, Mapping: f.mapping, Line: lines}
	f.profile.Location = append(f.profile.Location, l)
	return l
}

// function sets no system name, because viewers might demangle that as C++.
func (f *frames) function(name, file string) *profile.Function {
	key := function{name, file}
	fn := f.functions[key]
	if fn == nil {
		fn = &profile.Function{ID: uint64(len(f.profile.Function)) + 1, Name: name, Filename: file}
		f.profile.Function = append(f.profile.Function, fn)
		f.functions[key] = fn
	}
	return fn
}
