"""The pages of the documentation site, in the order of its menu."""

# English title, Chinese title, pages: title in both, and file. A page that does not exist is left out.
NAVIGATION = [
    ("Use", "使用", [
        ("Start", "开始", "index.md"),
        ("Which optimizer?", "选择优化器", "docs/choosing_an_optimizer.md"),
        ("Recipes", "集成示例", "docs/recipes.md"),
        ("Moving from torch.optim", "从 torch.optim 迁移", "docs/moving_from_torch_optim.md"),
        ("Watching a run", "观察训练过程", "docs/watching.md"),
        ("Precision", "选择精度", "docs/precision.md"),
        ("Memory", "节省内存", "docs/memory.md"),
        ("Distributed training", "分布式训练", "docs/distributed.md"),
        ("Accelerators", "加速器", "docs/accelerators.md"),
        ("Ascend without an NPU", "没有 NPU 的昇腾", "docs/npusim.md"),
        ("Questions and errors", "问题与报错", "docs/faq.md"),
    ]),
    ("Look up", "查阅", [
        ("Optimizers", "优化器", "api/optimizers.md"),
        ("What all optimizers share", "优化器的共同部分", "api/shared.md"),
        ("Functions", "函数", "api/functions.md"),
        ("Metrics", "指标", "api/metrics.md"),
        ("Compatibility", "兼容性", "docs/compatibility.md"),
        ("Numerics", "数值", "docs/numerics.md"),
        ("Benchmarks", "基准测试", "docs/benchmarks.md"),
        ("Changelog", "更新日志", "CHANGELOG.md"),
    ]),
    ("Inside", "内部", [
        ("Architecture", "架构", "docs/architecture.md"),
        ("How a step works", "一步更新如何进行", "docs/how_a_step_works.md"),
        ("The native core", "原生内核", "docs/native_core.md"),
        ("Compiled kernels", "编译后的内核", "docs/kernels.md"),
        ("Adding an optimizer", "添加优化器", "docs/adding_an_optimizer.md"),
        ("Adding a backend", "添加后端", "docs/adding_a_backend.md"),
        ("Contributing", "参与贡献", "CONTRIBUTING.md"),
        ("Security", "安全", "SECURITY.md"),
    ]),
]  # fmt: skip
