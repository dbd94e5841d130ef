"""Short texts in several languages, written for these tests: five domains, to learn from in one
language each, and to ask in six others.
"""

from __future__ import annotations

TRAINING = {
    "cooking": (
        "Wie lange muss ich Nudeln kochen?",
        "Den Teig eine Stunde ruhen lassen und dann backen.",
        "Welche Gewürze passen zu Lammfleisch?",
        "Zwiebeln in Butter anbraten, bis sie goldbraun sind.",
        "Ein Rezept für Apfelkuchen ohne Zucker.",
        "Kann man Suppe einfrieren?",
        "Die Kartoffeln schälen und in Scheiben schneiden.",
        "Wie macht man eine gute Tomatensoße?",
    ),
    "travel": (
        "Wann fährt der nächste Zug nach München?",
        "Ich möchte ein Hotelzimmer am Meer buchen.",
        "Brauche ich für Indien ein Visum?",
        "Der Flug hat drei Stunden Verspätung.",
        "Mein Koffer ist am Flughafen verloren gegangen.",
        "Welche Sehenswürdigkeiten gibt es in Rom?",
        "Was kostet eine Fahrkarte in die Innenstadt?",
        "Die Fähre zur Insel legt um acht Uhr ab.",
    ),
    "health": (
        "I have had a headache and a fever since yesterday.",
        "How often should I take these tablets?",
        "The doctor says my blood pressure is too high.",
        "What helps against a sore throat?",
        "The patient was given antibiotics after surgery.",
        "Is this rash on my arm an allergy?",
        "Symptoms of diabetes in adults.",
        "I need an appointment with a dentist.",
    ),
    "law": (
        "Can my landlord end the lease without notice?",
        "The court dismissed the appeal of the defendant.",
        "What does this clause of the contract mean?",
        "How do I file a patent for an invention?",
        "Who inherits if there is no will?",
        "The company was sued for breach of copyright.",
        "Do I have to pay alimony after a divorce?",
        "The witness gave evidence under oath.",
    ),
    "programming": (
        "How do I sort a list of objects in Python?",
        "The function returns a null pointer and the program crashes.",
        "What is the difference between a process and a thread?",
        "Write an SQL query that joins two tables.",
        "The compiler reports a type error in line ten.",
        "How can I undo the last commit in git?",
        "A regular expression that matches email addresses.",
        "The server answers with status code 500.",
    ),
}

PROMPTS = {
    "fr": {
        "cooking": (
            "Combien de temps faut-il cuire le riz ?",
            "Une recette de gâteau au chocolat",
        ),
        "travel": (
            "Je voudrais réserver un vol pour Lisbonne",
            "À quelle heure part le train pour Lyon ?",
        ),
        "health": (
            "J'ai mal au ventre et de la fièvre",
            "Quel médicament contre la toux ?",
        ),
        "law": (
            "Mon contrat de location est-il valable ?",
            "Le tribunal a condamné l'accusé",
        ),
        "programming": (
            "Comment trier un tableau en JavaScript ?",
            "Le programme plante avec une exception",
        ),
    },
    "es": {
        "cooking": (
            "¿Cómo se hace una tortilla de patatas?",
            "Freír el ajo en aceite de oliva",
        ),
        "travel": (
            "¿Dónde puedo reservar un hotel barato?",
            "Mi vuelo a Madrid fue cancelado",
        ),
        "health": (
            "Me duele la espalda desde hace una semana",
            "¿Qué dosis de este medicamento debo tomar?",
        ),
        "law": (
            "¿Puede mi casero rescindir el contrato?",
            "El juez rechazó la demanda",
        ),
        "programming": (
            "¿Cómo leo un archivo en Python?",
            "El compilador muestra un error de tipos",
        ),
    },
    "it": {
        "cooking": (
            "Quanto sale ci vuole nell'acqua della pasta?",
            "La ricetta del tiramisù",
        ),
        "travel": (
            "Ho perso la valigia all'aeroporto",
            "Vorrei prenotare una camera d'albergo",
        ),
        "health": (
            "Ho mal di testa e la febbre alta",
            "Il medico mi ha prescritto un antibiotico",
        ),
        "law": (
            "Chi eredita se non c'è un testamento?",
            "L'avvocato ha presentato ricorso",
        ),
        "programming": (
            "Come si scrive una funzione ricorsiva?",
            "La query SQL è troppo lenta",
        ),
    },
    "pt": {
        "cooking": ("Como faço pão em casa?", "Quanto tempo devo cozinhar o frango?"),
        "travel": (
            "Preciso de visto para viajar ao Brasil?",
            "O trem para o Porto está atrasado",
        ),
        "health": (
            "Estou com dor de garganta e tosse",
            "Quais são os sintomas da gripe?",
        ),
        "law": (
            "O inquilino não pagou o aluguel, posso processá-lo?",
            "O tribunal anulou a sentença",
        ),
        "programming": (
            "Como instalar uma biblioteca em Python?",
            "O laço nunca termina neste código",
        ),
    },
    "ru": {
        "cooking": ("Как сварить борщ?", "Сколько минут варить яйца?"),
        "travel": (
            "Во сколько отправляется поезд в Москву?",
            "Я хочу забронировать гостиницу",
        ),
        "health": (
            "У меня болит горло и высокая температура",
            "Какие таблетки принимать от давления?",
        ),
        "law": ("Суд отклонил иск", "Кто получает наследство без завещания?"),
        "programming": (
            "Как отсортировать массив?",
            "Программа выдаёт ошибку компиляции",
        ),
    },
    "zh": {
        "cooking": ("怎么做红烧肉？", "米饭要煮多长时间？"),
        "travel": ("我想订一张去北京的机票", "下一班火车几点开？"),
        "health": ("我头疼发烧怎么办？", "这种药一天吃几次？"),
        "law": ("房东可以随时解除租约吗？", "法院驳回了上诉"),
        "programming": ("如何在Python中读取文件？", "这段代码为什么会报错？"),
    },
}
"""By language and domain."""
