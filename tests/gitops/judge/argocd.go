package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// health is a result in Argo CD's words.
type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// argoCD runs health checks as Argo CD does.
type argoCD struct {
	// By key of the ConfigMap.
	scripts map[string]string
}

// The results that Argo CD accepts.
var statuses = []string{"Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown"}

func readArgoCD(path string) (*argoCD, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var configMap struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(text, &configMap); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &argoCD{scripts: configMap.Data}, nil
}

// judge runs the script of the object's kind. An object that is being deleted is Progressing before any script is asked, as in
// Argo CD.
func (argo *argoCD) judge(object *unstructured.Unstructured) (*health, error) {
	if object.GetDeletionTimestamp() != nil {
		return &health{Status: "Progressing", Message: "Pending deletion"}, nil
	}
	gvk := object.GroupVersionKind()
	key := fmt.Sprintf("resource.customizations.health.%s_%s", gvk.Group, gvk.Kind)
	script, ok := argo.scripts[key]
	if !ok {
		return nil, fmt.Errorf("there is no %s", key)
	}
	return execute(script, object.Object)
}

// execute runs a script with the libraries and the time that Argo CD gives it, and the global obj.
func execute(script string, object map[string]any) (*health, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{
		{lua.LoadLibName, lua.OpenPackage},
		{lua.BaseLibName, lua.OpenBase},
		{lua.TabLibName, lua.OpenTable},
	} {
		open := lua.P{Fn: state.NewFunction(library.open), Protect: true}
		if err := state.CallByParam(open, lua.LString(library.name)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", value(state, object))
	if err := state.DoString(script); err != nil {
		return nil, err
	}
	result, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return nil, fmt.Errorf("the script returns a %s, not a table", state.Get(-1).Type())
	}
	found := &health{Status: text(result, "status"), Message: text(result, "message")}
	if !slices.Contains(statuses, found.Status) {
		return nil, fmt.Errorf("the script returns the status %q", found.Status)
	}
	return found, nil
}

// text returns a field of a table, and what it is if it isn't a text: Argo CD accepts no other.
func text(table *lua.LTable, name string) string {
	field := table.RawGetString(name)
	if of, ok := field.(lua.LString); ok {
		return string(of)
	}
	return "(a " + field.Type().String() + ")"
}

// value converts JSON to Lua.
func value(state *lua.LState, of any) lua.LValue {
	switch of := of.(type) {
	case bool:
		return lua.LBool(of)
	case int64:
		return lua.LNumber(of)
	case float64:
		return lua.LNumber(of)
	case string:
		return lua.LString(of)
	case []any:
		table := state.CreateTable(len(of), 0)
		for _, one := range of {
			table.Append(value(state, one))
		}
		return table
	case map[string]any:
		table := state.CreateTable(0, len(of))
		for key, one := range of {
			table.RawSetString(key, value(state, one))
		}
		return table
	default:
		return lua.LNil
	}
}
