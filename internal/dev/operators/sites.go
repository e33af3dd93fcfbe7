package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// wrong has the mistakes for each operator.
var wrong = map[token.Token][]token.Token{
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.AND: {token.OR}, token.OR: {token.AND}, token.XOR: {token.AND}, token.AND_NOT: {token.AND}, token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR}, token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL}, token.LAND: {token.LOR}, token.LOR: {token.LAND},
}

// assigns has the operators of statements such as x += y.
var assigns = map[token.Token]token.Token{
	token.ADD_ASSIGN: token.ADD, token.SUB_ASSIGN: token.SUB, token.MUL_ASSIGN: token.MUL, token.QUO_ASSIGN: token.QUO, token.REM_ASSIGN: token.REM,
	token.AND_ASSIGN: token.AND, token.OR_ASSIGN: token.OR, token.XOR_ASSIGN: token.XOR, token.AND_NOT_ASSIGN: token.AND_NOT, token.SHL_ASSIGN: token.SHL, token.SHR_ASSIGN: token.SHR,
}

// site is an operator of the code.
type site struct {
	pos   token.Pos
	op    token.Token
	order int // of the walk: an expression comes before its operands
	node  ast.Node
}

// finder finds the operators of a package, or its statements.
type finder struct {
	info       *types.Info
	statements bool
	sites      []site
	order      int
}

// find visits the functions of a file, except those with directives such as go:nosplit, whose stack
// cannot grow for calls of helpers.
func (f *finder) find(file *ast.File) {
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil || fn.Doc != nil && strings.Contains(directives(fn.Doc), "//go:no") {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			f.order++
			if f.statements {
				f.lookForStatements(n)
			} else {
				f.look(n)
			}
			return true
		})
	}
}

func directives(doc *ast.CommentGroup) string {
	var text strings.Builder
	for _, c := range doc.List {
		fmt.Fprintln(&text, c.Text)
	}
	return text.String()
}

func (f *finder) look(n ast.Node) {
	add := func(pos token.Pos, op token.Token) { f.sites = append(f.sites, site{pos, op, f.order, n}) }
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if f.info.Types[n].Value == nil && f.fits(n.Op, n, n.X) && f.fits(n.Op, n, n.Y) && !f.shiftsConstant(n) {
			add(n.OpPos, n.Op)
		}
	case *ast.UnaryExpr:
		if f.info.Types[n].Value == nil && (n.Op == token.NOT && f.plainBool(n) || n.Op == token.SUB && f.number(n)) {
			add(n.OpPos, n.Op)
		}
	case *ast.IncDecStmt:
		if f.number(n.X) && pure(n.X) {
			add(n.TokPos, n.Tok)
		}
	case *ast.AssignStmt:
		if op, ok := assigns[n.Tok]; ok && f.fits(op, n.Lhs[0], n.Lhs[0]) && pure(n.Lhs[0]) {
			add(n.TokPos, n.Tok)
		}
	}
}

// lookForStatements finds the statements of a block that can be removed: calls, assignments, and
// conditions that return.
func (f *finder) lookForStatements(n ast.Node) {
	var list []ast.Stmt
	switch n := n.(type) {
	case *ast.BlockStmt:
		list = n.List
	case *ast.CaseClause:
		list = n.Body
	case *ast.CommClause:
		list = n.Body
	}
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.IfStmt:
			if _, returns := s.Body.List[max(0, len(s.Body.List)-1)].(*ast.ReturnStmt); !returns || s.Else != nil {
				continue
			}
		case *ast.ExprStmt, *ast.DeferStmt, *ast.IncDecStmt, *ast.GoStmt:
		default:
			continue
		}
		f.sites = append(f.sites, site{s.Pos(), token.ILLEGAL, f.order, s})
	}
}

// fits reports whether an operator's helpers accept the operand x of whole.
func (f *finder) fits(op token.Token, whole, x ast.Expr) bool {
	switch op {
	case token.EQL, token.NEQ:
		return f.plainBool(whole)
	case token.LAND, token.LOR:
		return f.plainBool(whole) && f.plainBool(x)
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		return f.plainBool(whole) && f.is(x, types.IsInteger|types.IsFloat|types.IsString)
	case token.ADD, token.SUB, token.MUL, token.QUO:
		return f.number(x)
	}
	return f.is(x, types.IsInteger)
}

// shiftsConstant reports a shifted constant, whose type comes from its context, which a helper
// cannot see.
func (f *finder) shiftsConstant(n *ast.BinaryExpr) bool {
	return (n.Op == token.SHL || n.Op == token.SHR) && f.info.Types[n.X].Value != nil
}

func (f *finder) number(x ast.Expr) bool { return f.is(x, types.IsInteger|types.IsFloat) }

// is reports whether all possible types of x are of the kind.
func (f *finder) is(x ast.Expr, kind types.BasicInfo) bool {
	t := f.info.TypeOf(x)
	if p, ok := t.(*types.TypeParam); ok {
		return satisfies(p, kind)
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&kind != 0 && b.Kind() != types.UnsafePointer
}

// satisfies reports whether every type of a type parameter's set is of the kind.
func satisfies(p *types.TypeParam, kind types.BasicInfo) bool {
	var terms []*types.Term
	for _, t := range types.Typ {
		if t.Info()&kind != 0 && t.Info()&types.IsUntyped == 0 {
			terms = append(terms, types.NewTerm(true, t))
		}
	}
	return types.Satisfies(p, types.NewInterfaceType(nil, []types.Type{types.NewUnion(terms)}))
}

func (f *finder) plainBool(x ast.Expr) bool {
	b, ok := f.info.TypeOf(x).(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0
}

// pure reports whether x can be evaluated twice.
func pure(x ast.Expr) bool {
	is := true
	ast.Inspect(x, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr, *ast.FuncLit:
			is = false
		case *ast.UnaryExpr:
			is = is && n.Op != token.ARROW
		}
		return is
	})
	return is
}
