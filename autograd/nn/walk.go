package nn

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/names"
	"github.com/cistern-ml/cistern/tensor"
)

// ParametersOf finds the parameters of a program's own model, a struct or a pointer to one, in the
// order of its fields. For example,
//
//	type Block struct {
//		Ln1  *nn.LayerNorm
//		Qkv  *nn.Linear `param:"attn"`
//		Mlp  nn.Sequential
//		Gain *autograd.Parameter
//	}
//
// has "ln1.weight", "ln1.bias", "attn.weight", "attn.bias", "mlp.0.weight", …, "gain". The walk
// enters exported fields that are a *Parameter, a value with a method Parameters such as a [Layer],
// or a struct, pointer, interface, slice, array or map of these. The walk calls that method instead
// of entering the value. A field's name is that in its tag, or the field's in Python's style:
// InProj is "in_proj", and Fc1 "fc1". The tag `param:"-"` leaves a field out, and an embedded
// struct's fields belong to the outer struct. Elements are named by their index or key, in order. A
// parameter that is reached again, such as tied weights, is listed once, under its first name.
// Pointers back to a value that the walk is in are left out.
//
// Optimisers and tapes refuse a model that would lose a parameter silently: an unexported field
// that is a parameter or a layer, a key that is neither a string nor a whole number, two parameters
// of one name. Optimisers, tapes, and values of the sibling packages that are not layers are not
// part of a model, and are left out.
//
// Optimisers and tapes also refuse a model that is nested more than 1000 values deep, a struct
// whose method Parameters is that of an embedded nil, and a parameter that is not a pointer.
// [StateDict] refuses a model with more than 65536 further ways to its parts.
//
// The walk enters the model itself even if it has a method Parameters, because that method may call
// ParametersOf. For a layer of this package, or of a sibling package, it calls the method. If
// methods Parameters call each other without end, such as those of two structs that point to each
// other, ParametersOf returns a single parameter, which has the error.
func ParametersOf(model any) autograd.Parameters { return parametersOf(model, false).params }

// BuffersOf finds a model's buffers as ParametersOf finds its parameters: those of the layers that
// are [Buffered], and exported fields that are a *tensor.Tensor with a tag, such as
// `buffer:"mean"`.
func BuffersOf(model any) []NamedTensor { return buffersOf(model, false).buffers }

// Forwarder is a model that [LayerOf] can make a layer of.
type Forwarder interface {
	// Forward computes the model as [Layer] does.
	Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable
}

// LayerOf makes a layer of a model, whose parameters and buffers are those that [ParametersOf] and
// [BuffersOf] find. In profiles its Forward is a module, named by its path in the enclosing model.
func LayerOf(model Forwarder) Layer {
	m := &module{model: model}
	if model != nil {
		m.forward = model.Forward
	}
	return m
}

type module struct {
	model   any
	forward func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable
	anchors anchors
}

func (m *module) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if m.forward == nil {
		return t.Fail(fmt.Errorf("nn: LayerOf, With: %w: the model or its function is nil", autograd.ErrInvalid))
	}
	at := search{self: m, around: t.EnterLayer("", "").Around()}
	at.layer(m, nil)
	defer at.enter(t, typeName(m.model)).Leave()
	return m.forward(t, x)
}

func (m *module) Parameters() autograd.Parameters { return ParametersOf(m.model) }
func (m *module) Buffers() []NamedTensor          { return BuffersOf(m.model) }

// parameterized is a value whose method the walk calls for its parameters.
type parameterized interface{ Parameters() autograd.Parameters }

var (
	parameterType     = reflect.TypeFor[*autograd.Parameter]()
	tensorType        = reflect.TypeFor[*tensor.Tensor]()
	parameterizedType = reflect.TypeFor[parameterized]()
	sequentialType    = reflect.TypeFor[Sequential]()
	layerType         = reflect.TypeFor[Layer]()
	optimizerType     = reflect.TypeFor[interface {
		Step(ctx context.Context) error
		ZeroGrad(ctx context.Context) error
		SetLR(lr float64) error
	}]()

	// noPart are types that hold or reach parameters, but are not part of a model.
	noPart = []reflect.Type{reflect.TypeFor[Initializer](), reflect.TypeFor[autograd.Tape](), reflect.TypeFor[autograd.Variable]()}
)

// ours reports whether a type is of one of these packages below autograd.
func ours(t reflect.Type, packages ...string) bool {
	pkg, ok := strings.CutPrefix(t.PkgPath(), parameterType.Elem().PkgPath()+"/")
	return ok && slices.Contains(packages, pkg)
}

// walk is one walk over a model, for its parameters or for its buffers.
type walk struct {
	shared    bool // a parameter that is reached again gets its other names too
	ofBuffers bool
	nils      bool // nil parameters of layers are not left out
	params    autograd.Parameters
	buffers   []NamedTensor
	seen      map[any]bool // parameters and buffers
	names     map[string]bool
	layers    map[string]string // types of layers, by their paths
	holders   []holder          // that the walk is in
	depth     int               // of the value that the walk is at
	*visits
}

func newWalk(shared, ofBuffers bool) *walk {
	return &walk{shared: shared, ofBuffers: ofBuffers, seen: map[any]bool{}, names: map[string]bool{}, layers: map[string]string{}, visits: newVisits()}
}

func parametersOf(model any, shared bool) *walk {
	w := newWalk(shared, false)
	w.begin(model)
	w.setLayers()
	return w
}

// setLayers sets the type of each parameter's layer.
func (w *walk) setLayers() {
	for i, p := range w.params {
		if p.Layer == "" {
			w.params[i].Layer = w.layers[names.Module(p.Name)]
		}
	}
}

// isLayer records the type of the layer at a path. It is that of the outermost value there with a
// named type.
func (w *walk) isLayer(name, layer string) {
	if w.layers[name] == "" {
		w.layers[name] = layer
	}
}

// parametersIn implements the method Parameters of layers that hold others.
func parametersIn(layer any) autograd.Parameters {
	w := newWalk(false, false)
	w.nils = true
	w.begin(layer)
	w.setLayers()
	return w.params
}

func buffersOf(model any, shared bool) *walk {
	w := newWalk(shared, true)
	w.begin(model)
	return w
}

// root walks a model, or calls its method if it is a layer of this package or of a sibling package.
func (w *walk) root(v reflect.Value) {
	switch k := v.Kind(); {
	case k == reflect.Invalid:
	case k == reflect.Pointer || k == reflect.Interface:
		w.once("", v, func() { w.root(v.Elem()) })
	case !ours(v.Type(), "nn", "remat", "offload") || !w.ask("", v):
		w.once("", v, func() { w.walk("", v) })
	}
}

// holder is a layer that holds others, at its path; see [autograd.Holder].
type holder struct {
	layer any
	path  string
}

// hold begins a layer that holds others; the result ends it.
func (w *walk) hold(layer any, path string) (end func()) {
	w.holders = append(w.holders, holder{layer, path})
	return func() { w.holders = w.holders[:len(w.holders)-1] }
}

// add adds a parameter, unless the walk has it already and names are not shared. inner are its
// holders inside of the value that the walk is in.
func (w *walk) add(name string, p *autograd.Parameter, inner *autograd.Holder) {
	if p == nil || w.ofBuffers || w.seen[p] && !w.shared {
		return
	}
	if w.names[name] {
		w.refuse(name, "two parameters have that name")
		return
	}
	w.seen[p], w.names[name] = true, true
	for _, h := range slices.Backward(w.holders) {
		inner = &autograd.Holder{Layer: h.layer, Local: strings.TrimPrefix(name[len(h.path):], "."), Inner: inner}
	}
	w.params = append(w.params, autograd.Named{Name: name, Parameter: p, Holder: inner})
}

func (w *walk) addBuffer(name string, t *tensor.Tensor) {
	if t == nil || !w.ofBuffers || w.seen[t] && !w.shared {
		return
	}
	w.seen[t] = true
	w.buffers = append(w.buffers, NamedTensor{name, t})
}

// refuse adds a parameter that has an error, for one that can't be found.
func (w *walk) refuse(name, why string) {
	if !w.ofBuffers {
		w.params = append(w.params, autograd.Named{Name: name, Parameter: autograd.MissingParameter(fmt.Errorf("%w: %s: %s", autograd.ErrInvalid, name, why))})
	}
}

// ask adds the parameters or buffers of a value that has methods for them, and reports whether it
// did. It returns false for layers that only hold others, which are walked instead.
func (w *walk) ask(name string, v reflect.Value) bool {
	if !v.Type().Implements(parameterizedType) && reflect.PointerTo(v.Type()).Implements(parameterizedType) {
		pointer := v
		if v.CanAddr() {
			pointer = v.Addr()
		} else {
			pointer = reflect.New(v.Type()) // to a copy, which has the same parameters
			pointer.Elem().Set(v)
		}
		v = pointer
	}
	if onlyHolds(v.Type()) {
		return false
	}
	layer, ok := v.Interface().(parameterized)
	switch {
	case !ok:
		return false
	case v.Kind() == reflect.Pointer && v.IsNil():
		return true
	case promotesNil(v):
		w.refuse(name, fmt.Sprintf("%v embeds a nil value and has its methods", v.Type()))
		return true
	}
	w.isLayer(name, typeName(layer))
	if w.ofBuffers {
		b, ok := layer.(Buffered)
		if ok {
			for _, t := range b.Buffers() {
				w.addBuffer(names.Join(name, t.Name), t.Tensor)
			}
		}
		return ok
	}
	if m, ok := layer.(*module); ok {
		defer w.hold(m, name)()
	}
	for _, p := range w.withSharedNames(w.parametersOf(layer), v) {
		if p.Parameter == nil && w.nils || p.Parameter != nil && p.Value() == nil {
			w.params = append(w.params, autograd.Named{Name: names.Join(name, p.Name), Parameter: p.Parameter})
			continue
		}
		if inner := names.Module(p.Name); inner != "" {
			w.isLayer(names.Join(name, inner), p.Layer)
		}
		w.add(names.Join(name, p.Name), p.Parameter, p.Holder)
	}
	return true
}

// withSharedNames returns ps, the parameters of a layer's method. If names are shared and a walk
// over the layer finds these and more, it returns those of the walk, because a method that calls
// ParametersOf returns only one name of each parameter.
func (w *walk) withSharedNames(ps autograd.Parameters, layer reflect.Value) autograd.Parameters {
	if !w.shared {
		return ps
	}
	inside := newWalk(true, false)
	inside.visits, inside.depth = w.visits, w.depth
	if m, ok := layer.Interface().(*module); ok {
		inside.visit("", reflect.ValueOf(m.model))
	} else {
		for layer.Kind() == reflect.Pointer {
			layer = layer.Elem()
		}
		inside.walk("", layer)
	}
	inside.setLayers()
	if len(inside.params) > len(ps) && containsAll(bare(inside.params), bare(ps)) && !slices.ContainsFunc(inside.params, func(p autograd.Named) bool { return p.Value() == nil }) {
		return inside.params
	}
	return ps
}

// bare returns the parameters without their layers.
func bare(ps autograd.Parameters) autograd.Parameters {
	ps = slices.Clone(ps)
	for i := range ps {
		ps[i].Layer, ps[i].Holder = "", nil
	}
	return ps
}

func containsAll[T comparable](all, some []T) bool {
	have := make(map[T]bool, len(all))
	for _, x := range all {
		have[x] = true
	}
	return !slices.ContainsFunc(some, func(x T) bool { return !have[x] })
}

// walk enters a value.
func (w *walk) walk(name string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		w.visit(name, v.Elem())
	case reflect.Slice, reflect.Array:
		if !mayHold(v.Type().Elem()) {
			return
		}
		if v.Kind() == reflect.Slice {
			if v.Type() == sequentialType {
				w.isLayer(name, sequentialType.Name())
			}
			v = v.Slice(0, v.Len()) // which no method can change
		}
		if s, ok := v.Interface().(Sequential); ok && len(s) > 0 {
			defer w.hold(&s[0], name)()
		}
		for i := range v.Len() {
			w.visit(names.Join(name, strconv.Itoa(i)), v.Index(i))
		}
	case reflect.Map:
		w.walkMap(name, v)
	case reflect.Struct:
		if !onlyHolds(v.Type()) {
			w.isLayer(name, nameOf(v.Type()))
		}
		for i := range v.NumField() {
			w.field(name, v.Type().Field(i), v.Field(i))
		}
	}
}

// visit handles a value that the walk reaches.
func (w *walk) visit(name string, v reflect.Value) {
	switch {
	case !v.IsValid() || v.Type() == tensorType || isNoPart(v.Type()):
	case v.Type() == parameterType:
		w.add(name, v.Interface().(*autograd.Parameter), nil)
	case v.Type() == parameterType.Elem():
		w.refuse(name, "it is a Parameter: want a *Parameter, which optimisers can update")
	case v.Kind() == reflect.Interface:
		w.visit(name, v.Elem())
	default:
		w.once(name, v, func() {
			if !w.ask(name, v) {
				w.walk(name, v)
			}
		})
	}
}

// isNoPart reports whether values of the type are not part of a model, although they may hold
// parameters: optimisers, and types of the packages of features that are not layers.
func isNoPart(t reflect.Type) bool {
	for range maxDepth { // a type may be a pointer to itself
		if t.Kind() != reflect.Pointer {
			break
		}
		t = t.Elem()
	}
	p := reflect.PointerTo(t)
	return p.Implements(optimizerType) || slices.Contains(noPart, t) || ours(t, "checkpoint", "offload", "optim", "parallel", "remat") && !p.Implements(layerType)
}

func (w *walk) field(name string, f reflect.StructField, v reflect.Value) {
	tag := f.Tag.Get("param")
	buffer := f.Tag.Get("buffer")
	own := tag
	if own == "" {
		own = snake(f.Name)
	}
	switch {
	case tag == "-":
	case !f.IsExported() && !f.Anonymous:
		if holds(f.Type) || buffer != "" {
			w.refuse(names.Join(name, own), fmt.Sprintf("the field %s is not exported: export it, or tag it `param:\"-\"`", f.Name))
		}
	// Reflection reaches the exported fields of an embedded struct, but not its methods.
	case !f.IsExported():
		switch {
		case f.Type.Kind() == reflect.Struct:
			w.walk(names.Join(name, tag), v)
		case f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct:
			w.once(name, v, func() { w.walk(names.Join(name, tag), v.Elem()) })
		case holds(f.Type):
			w.refuse(names.Join(name, own), fmt.Sprintf("the embedded type %s is not exported: export it, or tag it `param:\"-\"`", f.Name))
		}
	case v.Type() == tensorType:
		if buffer != "" {
			w.addBuffer(names.Join(name, buffer), v.Interface().(*tensor.Tensor))
		}
	case f.Anonymous && tag == "":
		w.visit(name, v)
	default:
		w.visit(names.Join(name, own), v)
	}
}

// walkMap enters a map in the order of its keys.
func (w *walk) walkMap(name string, v reflect.Value) {
	if !mayHold(v.Type().Elem()) {
		return
	}
	keys := v.MapKeys()
	switch k := v.Type().Key().Kind(); {
	case k == reflect.String:
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
	case v.Type().Key().ConvertibleTo(reflect.TypeFor[int64]()) && k != reflect.Float32 && k != reflect.Float64:
		slices.SortFunc(keys, func(a, b reflect.Value) int {
			return cmp.Compare(a.Convert(reflect.TypeFor[int64]()).Int(), b.Convert(reflect.TypeFor[int64]()).Int())
		})
	default:
		w.refuse(name, fmt.Sprintf("the keys of a map are %v: want strings or whole numbers", v.Type().Key()))
		return
	}
	for _, k := range keys {
		w.visit(names.Join(name, fmt.Sprint(k)), v.MapIndex(k))
	}
}

// holds reports whether the type is a parameter or a layer, or a collection of them.
func holds(t reflect.Type) bool {
	for range maxDepth { // a type may be a list of itself
		if k := t.Kind(); k != reflect.Slice && k != reflect.Array && k != reflect.Map || t.Implements(parameterizedType) {
			break
		}
		t = t.Elem()
	}
	if isNoPart(t) {
		return false
	}
	return t == parameterType || t == parameterType.Elem() || t.Implements(parameterizedType) || reflect.PointerTo(t).Implements(parameterizedType)
}

// mayHold reports whether a type can hold parameters. A walk skips the others, such as a slice of a
// million numbers.
func mayHold(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice, reflect.Array, reflect.Map:
		return true
	}
	return holds(t)
}

// snake returns a Go name in Python's style: InProj is in_proj, QKV qkv, and LN1 ln1.
func snake(name string) string {
	runes := []rune(name)
	var b strings.Builder
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 {
			before := runes[i-1]
			ends := i+1 < len(runes) && unicode.IsLower(runes[i+1]) && unicode.IsUpper(before)
			if before != '_' && (!unicode.IsUpper(before) || ends) {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
