"""Outputs of tools that no registry has here, written after their documented forms."""
from base import *
@several([("dotnet.test", "dotnet test")], real=False)
def dotnet_test(m, c):
    L = ["  Determining projects to restore...", "  All projects are up-to-date for restore.", "  Shop -> /home/dev/shop/src/Shop/bin/Debug/net8.0/Shop.dll", "Test run for /home/dev/shop/tests/bin/Debug/net8.0/Shop.Tests.dll (.NETCoreApp,Version=v8.0)", "Starting test execution, please wait...", "A total of 1 test files matched the specified pattern."]
    total = m.n(12, 80, 200); bad = m.chosen(total, m.n(2, 4, 7))
    for i in range(total):
        nm = f"Shop.Tests.{m.word().title()}Tests.Keeps{m.word().title()}{i}"
        if i in bad:
            a = m.num(); f = f"/home/dev/shop/tests/{m.word().title()}{i}Tests.cs"; l = m.num() % 400
            L += [f"  Failed {nm} [{i % 9 + 1} ms]", "  Error Message:", "   Assert.Equal() Failure: Values differ", f"Expected: {a+1}", f"Actual:   {a}", "  Stack Trace:", f"     at {nm}() in {f}:line {l}", "   at System.RuntimeMethodHandle.InvokeMethod(Object target, Void** arguments, Signature sig, Boolean isConstructor)", "   at System.Reflection.MethodBaseInvoker.InvokeWithNoArgs(Object obj, BindingFlags invokeAttr)"]
            m.plant(f"Actual:   {a}", f"{f}:line {l}", nm)
        else: L.append(f"  Passed {nm} [< 1 ms]")
    L += ["", f"Failed!  - Failed:     {len(bad)}, Passed:   {total-len(bad)}, Skipped:     0, Total:   {total}, Duration: 310 ms - Shop.Tests.dll (net8.0)"]
    return "\n".join(L) + "\n"
@several([("dotnet.build", "dotnet build")], real=False)
def dotnet_build(m, c):
    L = ["MSBuild version 17.8.3+195e7f5a3 for .NET", "  Determining projects to restore..."]; E = []
    for i, w in enumerate(m.pick(m.n(4, 12, 30))):
        f = f"/home/dev/shop/src/{w.title()}/{w.title()}{i}.cs"
        if i % 3 == 0: v = f"missing{m.num()}"; E.append(f"{f}({i+12},17): error CS0103: The name '{v}' does not exist in the current context [/home/dev/shop/src/Shop.csproj]"); m.plant(f"CS0103: The name '{v}' does not exist in the current context", f"{f}({i+12},17)")
        E.append(f"{f}({i+2},13): warning CS0168: The variable 'e{i}' is declared but never used [/home/dev/shop/src/Shop.csproj]")
    n = sum("error" in e for e in E)
    L += E + ["", "Build FAILED.", ""] + E + [f"    {len(E)-n} Warning(s)", f"    {n} Error(s)", "", "Time Elapsed 00:00:04.61"]
    return "\n".join(L) + "\n"
@several([("swift.build", "swift build")], real=False)
def swift(m, c):
    L = ["Building for debugging..."] + [f"[{i}/90] Compiling Shop {m.word().title()}{i}.swift" for i in range(m.n(20, 60, 90))]
    for i, w in enumerate(m.pick(m.n(3, 8, 14))):
        f = f"/home/dev/shop/Sources/Shop/{w.title()}.swift"; v = f"missing{m.num()}"
        if i % 2 == 0: L += [f"{f}:{i+9}:16: error: cannot find '{v}' in scope", f"        return {v}", f"               ^{'~' * (len(v)-1)}"]; m.plant(f"cannot find '{v}' in scope", f"{f}:{i+9}")
        else: L += [f"{f}:{i+3}:9: warning: variable 'x{i}' was never used; consider replacing with '_' or removing it", f"    var x{i} = 1", "    ~~~~^~", "    _"]
    return "\n".join(L + ["error: fatalError"]) + "\n"
@several([("terraform.plan", "terraform plan")], real=False)
def terraform(m, c):
    L = [f'aws_{m.word()}.{m.word()}_{i}: Refreshing state... [id={m.word()}-{m.num()}]' for i in range(m.n(20, 120, 300))] + [""]
    for i, w in enumerate(m.pick(m.n(2, 4, 7))):
        a = f"{w}_size_{m.num()}"; L += ["╷", "│ Error: Unsupported argument", "│ ", f'│   on modules/{w}/main.tf line {i+12}, in resource "aws_{w}" "main":', f"│   {i+12}:   {a} = 4", "│ ", f'│ An argument named "{a}" is not expected here.', "╵"]
        m.plant(f'An argument named "{a}" is not expected here.', f"modules/{w}/main.tf line {i+12}")
    return "\n".join(L) + "\n"
@several([("docker.build", "docker build .")], real=False)
def docker(m, c):
    L = ["#0 building with \"default\" instance using docker driver", "", "#1 [internal] load build definition from Dockerfile", "#1 transferring dockerfile: 312B done", "#1 DONE 0.0s", "", "#7 [4/6] RUN npm ci && npm run build"]
    L += [f"#7 {i/10:.3f} bundling {m.word()}/{m.word()}_{i}.js  {m.num()} kB" for i in range(m.n(20, 200, 500))]
    v = f"missing{m.num()}"
    L += [f"#7 41.20 src/pages/cart.tsx(41,7): error TS2304: Cannot find name '{v}'.", "#7 ERROR: process \"/bin/sh -c npm ci && npm run build\" did not complete successfully: exit code: 2", "------", " > [4/6] RUN npm ci && npm run build:", f"41.20 src/pages/cart.tsx(41,7): error TS2304: Cannot find name '{v}'.", "------", "Dockerfile:9", "--------------------", "   7 |     COPY package*.json ./", "   8 |     COPY . .", "   9 | >>> RUN npm ci && npm run build", "  10 |     EXPOSE 8080", "--------------------", "ERROR: failed to solve: process \"/bin/sh -c npm ci && npm run build\" did not complete successfully: exit code: 2"]
    m.plant(f"TS2304: Cannot find name '{v}'.", "src/pages/cart.tsx(41,7)"); m.plant("ERROR: failed to solve", "Dockerfile:9")
    return "\n".join(L) + "\n"
@several([("kubectl.apply", "kubectl apply -f k8s/")], real=False)
def kubectl(m, c):
    L = []
    for i, w in enumerate(m.pick(m.n(20, 90, 200))):
        if i % 20 == 7: L.append(f'The Deployment "{w}-{i}" is invalid: spec.template.spec.containers[0].image: Required value'); m.plant(f'The Deployment "{w}-{i}" is invalid: spec.template.spec.containers[0].image: Required value')
        elif i % 20 == 13: L.append(f'error: error validating "k8s/{w}-{i}.yaml": error validating data: unknown object type "nil" in Service.spec'); m.plant(f'error validating "k8s/{w}-{i}.yaml"')
        else: L.append(f"{m.r.choice(['deployment.apps','service','configmap'])}/{w}-{i} unchanged")
    return "\n".join(L) + "\n"
